"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);

  // -- the table: a click or a key press on a heading sorts by its column, a second one turns it round ------------
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const headings = [...table.tHead.rows[0].cells];
    const compare = (a, b) => {
      const [x, y] = [Number(a), Number(b)];
      return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
    };
    headings.forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => {
        const now = heading.getAttribute("aria-sort");
        const first = heading.dataset.first || "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const next = now === first ? other : first;
        const sign = next === "ascending" ? 1 : -1;
        headings.forEach((each) => each.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", next);
        const body = table.tBodies[0];
        const value = (row) => row.cells[column].dataset.value;
        const failed = (row) => Number(row.classList.contains("failed"));
        [...body.rows]
          .sort((a, b) => failed(a) - failed(b) || sign * compare(value(a), value(b)))
          .forEach((row) => body.append(row));
      });
    });
  }

  // -- the legend: one method at a time stands out in all charts ---------------------------------------------------
  const lines = [...document.querySelectorAll(".line")];
  const keys = [...document.querySelectorAll(".legend button")];
  let chosen;
  const show = (name) => {
    document.body.classList.toggle("chosen", name !== undefined);
    lines.forEach((line) => line.classList.toggle("on", line.dataset.name === name));
  };
  for (const key of keys) {
    key.addEventListener("click", () => {
      chosen = chosen === key.dataset.name ? undefined : key.dataset.name;
      keys.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.name === chosen)));
      show(chosen);
    });
    key.addEventListener("pointerenter", () => show(key.dataset.name));
    key.addEventListener("pointerleave", () => show(chosen));
  }

  // -- the charts: a cursor with the values of all lines, by pointer or by arrow keys -------------------------------
  const written = (value, percent) => (percent ? (value * 100).toFixed(1) + "%" : String(Number(value.toPrecision(3))));
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = charts[figure.dataset.chart];
    const picture = figure.querySelector("svg");
    const cursor = figure.querySelector(".cursor");
    const readout = figure.querySelector(".readout");
    const places = [...new Set(chart.lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
    let at = -1;
    if (places.length === 0) continue;

    const nearest = (points, x) =>
      points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));

    const read = (index) => {
      at = Math.min(Math.max(index, 0), places.length - 1);
      const x = places[at];
      const found = chart.lines
        .filter((line) => line.points.length > 0)
        .map((line) => ({ ...line, point: nearest(line.points, x) }))
        .sort((a, b) => b.point[2] - a.point[2]);
      const own = found.find((line) => line.point[0] === x);
      const title = document.createElement("b");
      title.textContent = chart.label + " " + Number(own.point[1].toPrecision(3));
      readout.replaceChildren(title);
      for (const line of found) {
        const row = document.createElement("span");
        row.className = line.style;
        const name = document.createElement("i");
        name.textContent = line.name;
        row.append(name, written(line.point[2], chart.percent));
        readout.append(row);
      }
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      readout.hidden = false;
      figure.classList.add("reading");
      const scale = picture.clientWidth / chart.width || picture.getBoundingClientRect().width / chart.width;
      const room = figure.clientWidth - readout.offsetWidth;
      const right = x * scale + 14;
      const left = x * scale - readout.offsetWidth - 14;
      readout.style.left = Math.max(0, right <= room ? right : Math.min(left, room)) + "px";
    };
    const leave = () => {
      readout.hidden = true;
      figure.classList.remove("reading");
      at = -1;
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * chart.width;
      const distance = (place) => Math.abs(place - x);
      read(places.reduce((best, place, index) => (distance(place) < distance(places[best]) ? index : best), 0));
    });
    picture.addEventListener("pointerleave", leave);
    figure.addEventListener("blur", leave);
    figure.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowLeft: at < 0 ? places.length - 1 : at - 1, Home: 0, End: places.length - 1 };
      if (event.key === "Escape") leave();
      if (!(event.key in moves)) return;
      event.preventDefault();
      read(moves[event.key]);
    });
  }
})();
