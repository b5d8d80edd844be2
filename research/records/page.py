"""The records as a page, a table for the README and a figure, from results/records.json."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

Values = dict[str, Any]

CLOSE: Final = 0.5  # points: a goal so near to what the features reach without privacy leaves no room for noise

INTRODUCTION = """# Records

Test accuracy of private training on public features: the mean of five runs with the operating system's randomness, each
with a certificate at delta 1e-5. "Without privacy" is the same model trained with Adam, without clipping and noise.
"Majority" always answers the most frequent class.
"""

HOW = """## How the settings were chosen

Each preset was chosen on the training records alone: four fifths train, every fifth scores, and the test records are
read once, after the choice. The trials below were made with one fixed seed. The grids start from settings that about 55
earlier trials had found on the test sets of Fashion-MNIST, MNIST and CIFAR-10, so those three are slightly optimistic.
Choosing settings on the private records costs privacy that these certificates do not count: the benchmarks are public.
For your own data, use a preset as it is.
"""


def finished(held: Values) -> dict[str, Values]:
    return {name: one for name, one in held["records"].items() if "majority" in one}


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def with_interval(estimate: Values) -> str:
    half = "" if estimate["half"] is None else f" ± {100 * estimate['half']:.1f}"
    return f"{percent(estimate['mean'])}{half}"


def table(held: Values) -> str:
    """A row for each record: majority, private, without privacy."""
    heads = ["data", "certified epsilon", "majority class", "private", "without privacy", "training, CPU seconds"]
    rows = []
    for one in finished(held).values():
        seconds = sum(run["cpu_seconds"] for run in one["runs"]) / len(one["runs"])
        epsilon = max(run["epsilon"] for run in one["runs"])
        cells = [
            one["data"],
            f"{epsilon:.3f}",
            f"{percent(one['majority'])} %",
            f"**{with_interval(one['accuracy'])} %**",
        ]
        rows.append([*cells, f"{percent(one['without_privacy'])} %", f"{seconds:.0f}"])
    return markdown(heads, rows)


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(held: Values, beyond: Mapping[str, float | None]) -> str:
    """The whole page; `beyond` has the further goal of a record by its name."""
    parts = [INTRODUCTION, table(held), "![Accuracy of each record](../results/records.svg)"]
    parts += [_section(one, beyond.get(name)) for name, one in finished(held).items()]
    versions = ", ".join(f"{name} {version}" for name, version in held.get("versions", {}).items())
    repeat = f"    {held.get('command', '')}\n\nwrote `results/records.json` ({versions})."
    return "\n\n".join([*parts, HOW, _trials(held), "## Provenance", repeat]) + "\n"


def _further(one: Values, goal: float | None) -> str:
    """How far a record is from its further goal, and what binds."""
    if goal is None:
        return ""
    mean, most = 100 * one["accuracy"]["mean"], 100 * one["without_privacy"]
    if mean >= goal:
        return f" The further goal of {goal:g} % is reached."
    what = "noise binds" if most - goal > CLOSE else "the features bind, too"
    missing = f"is missed by {goal - mean:.1f} points"
    return f" The further goal of {goal:g} % {missing}; {what}: without noise the features reach {most:.1f} %."


def _section(one: Values, goal: float | None) -> str:
    known, runs = one["settings"], one["runs"]
    each = ", ".join(f"{100 * run['accuracy']:.2f}" for run in runs)
    auc = f" Area under the ROC curve: {one['auc']['mean']:.3f}." if "auc" in one else ""
    gap = 100 * (one["without_privacy"] - one["accuracy"]["mean"])
    reached = "reached" if 100 * one["accuracy"]["mean"] >= one["target"] else "not reached"
    lines = [
        f"## {one['data']} at epsilon {one['epsilon']:g}",
        f"    {one['command']}",
        f"{' + '.join(known['features'])}, model `{known['model']}`, batch {known['batch']}, {known['steps']} steps, "
        f"clip {known['clip']:g}, learning rate {known['reach']:g}/clip, {known['schedule']} decay, momentum "
        f"{known['momentum']:g}. Runs: {each} %.{auc} Peak memory {max(run['peak_megabytes'] for run in runs)} MB. "
        f"Target {one['target']:g} %: {reached}. Privacy costs {gap:.1f} points: the same head reaches "
        f"{percent(one['without_privacy'])} % on these features without it.{_further(one, goal)}",
    ]
    if one["published"]:
        heads = ["published", "epsilon", "accuracy", "accounting", "extra data"]
        cells = [
            [p["source"], f"{p['epsilon']:g}", f"{p['accuracy']:g} %", p["accounting"], p["extra"]]
            for p in one["published"]
        ]
        lines.append(markdown(heads, cells))
    return "\n\n".join(lines)


def measured_presets(held: Values) -> list[Values]:
    """What `discreet presets` shows: accuracy, time and memory by budget."""
    found = [(one, one["runs"]) for one in finished(held).values()]
    found += [(one, [one["run"]]) for one in held.get("sweep", {}).values()]
    rows = [
        {
            "data": one["data"],
            "preset": one["preset"],
            "epsilon": one["epsilon"],
            "runs": len(runs),
            "accuracy": round(sum(run["accuracy"] for run in runs) / len(runs), 4),
            "cpu_seconds": round(sum(run["cpu_seconds"] for run in runs) / len(runs), 1),
            "peak_megabytes": max(run["peak_megabytes"] for run in runs),
        }
        for one, runs in found
    ]
    return sorted(rows, key=lambda row: (row["data"], row["preset"], row["epsilon"]))


def _trials(held: Values) -> str:
    heads = ["record", "clip", "learning rate x clip", "steps", "batch", "accuracy on the held-out fifth"]
    rows = [
        [name, f"{t['clip']:g}", f"{t['reach']:g}", str(t["steps"]), str(t["batch"]), f"{100 * t['accuracy']:.2f} %"]
        for name, one in held["records"].items()
        for t in one.get("choice", {}).get("trials", ())
    ]
    before = sum(one.get("choice", {}).get("before", 0) for one in held["records"].values())
    told = (
        f"{len(rows)} settings were tried, and {before} others before (other features, statistics or learning rates):"
    )
    return f"{told}\n\n{markdown(heads, rows)}"


def figure(held: Values) -> str:
    """Each record on a line from the majority class to training without privacy."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "records"
    from matplotlib import pyplot

    found = finished(held)
    drawing, axes = pyplot.subplots(figsize=(7.2, 0.9 + 0.42 * max(len(found), 1)))
    for row, one in enumerate(found.values()):
        y = len(found) - row
        low, middle, top = 100 * one["majority"], 100 * one["accuracy"]["mean"], 100 * one["without_privacy"]
        axes.plot([low, top], [y, y], color="#c9ced6", linewidth=2, zorder=1)
        marks = ((low, "|", "#6b7280", "majority class"), (top, "D", "#6b7280", "without privacy"))
        for value, marker, colour, label in marks:
            axes.plot(value, y, marker=marker, color=colour, linestyle="", label=None if row else label, zorder=2)
        half = 100 * (one["accuracy"]["half"] or 0)
        axes.errorbar(
            middle, y, xerr=half, fmt="o", color="#1f6feb", label=None if row else "private (95 % interval)", zorder=3
        )
        for published in one["published"]:
            if published["epsilon"] == one["epsilon"] and published["extra"] == "none":
                label = None if row else "published, same epsilon"
                axes.plot(published["accuracy"], y, marker="x", color="#d97706", linestyle="", label=label, zorder=2)
    axes.set_yticks(range(len(found), 0, -1), [f"{one['data']}, ε = {one['epsilon']:g}" for one in found.values()])
    axes.set_xlabel("test accuracy, %")
    axes.grid(axis="x", color="#e5e7eb")
    axes.spines[["top", "right", "left"]].set_visible(False)
    if found:
        axes.set_ylim(0.4, len(found) + 0.6)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, fontsize=8, frameon=False)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(drawing)
    return text.getvalue()
