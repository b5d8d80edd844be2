"""Fill the measured parts of a page from result files: `python -m research.readme PAGE RESULTS`.

PAGE is README.md, docs/comparison.md or docs/trainers.md. Each part is between `<!-- name -->` and `<!-- /name -->`; a
part whose file is missing stays unchanged.

records     RESULTS/records.json: the figure and a row for each record
comparison-features, comparison-cnn-small
            RESULTS/long-comparison/PART/report.json: the figure, a table of the budgets, the search, the command
e2e         RESULTS/trainers/e2e-*.json: the SFT example beside its peers
truth       RESULTS/truth-table.json: the claims that an attack refutes
speed       RESULTS/speed.json, of `python -m research.benchmarks --out`, else RESULTS/step-time.json: private
            steps over plain ones
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from discreet.core import check
from discreet.core.files import write_text
from discreet.core.plain import from_plain
from discreet.report import page, wording
from discreet.runs.audit_rows import AuditRow, AuditVerdict, read_audit
from discreet.runs.comparison.values import FORMAT, Comparison, MethodResult
from research.records.page import table as record_table

COMPARISONS = ("features", "cnn-small")  # the parts of the long comparison
KEPT = "long-comparison"
TRUTH = "truth-table.json"
RECORDS = "records.json"
_NOT_PRIVATE = ("plain", "floor")
SPEED = ("speed.json", "step-time.json")
E2E = {
    "e2e-epsilon-8.json": "`PrivateTrainer`",
    "e2e-beside-epsilon-8.json": "`PrivateTrainer`, in the hour of the next row",
    "e2e-opacus-epsilon-8.json": "Opacus, the same settings",
    "e2e-row-epsilon-8.json": "`dice-e2e`, row DPSGD-GC, the same steps",
    "e2e-epsilon-3.json": "`PrivateTrainer`",
    "e2e-opacus-epsilon-3.json": "Opacus, the same settings",
}
"""The files of the SFT example and its peers, and how a table calls them."""


def main() -> None:
    check.require(len(sys.argv) == 3, "a page and the folder of results", sys.argv[1:], "name both")
    rewrite(Path(sys.argv[1]), Path(sys.argv[2]))


def rewrite(written: Path, results: Path) -> None:
    """Fill the parts of a page in place."""
    text = written.read_text(encoding="utf-8")
    place = f"../{results.name}" if written.parent.name == "docs" else results.name
    for name, part in parts(results, place):
        if f"<!-- {name} -->" in text:
            text = put(text, name, part)
    write_text(written, text)


def parts(results: Path, place: str) -> Iterator[tuple[str, str]]:
    """The parts whose files are there; `place` is the folder of results as the page's links name it."""
    if (results / RECORDS).is_file():
        yield "records", records(json.loads((results / RECORDS).read_text(encoding="utf-8")), place)
    for name in COMPARISONS:
        file = results / KEPT / name / page.DATA
        if file.is_file():
            yield f"comparison-{name}", comparison(read_comparison(file), f"{place}/{KEPT}/{name}")
    examples = [(about, results / "trainers" / name) for name, about in E2E.items()]
    if any(file.is_file() for _, file in examples):
        held = [(about, json.loads(file.read_text("utf-8"))) for about, file in examples if file.is_file()]
        yield "e2e", e2e(held)
    if (results / TRUTH).is_file():
        yield "truth", truth(read_audit(results / TRUTH))
    timed = next((results / name for name in SPEED if (results / name).is_file()), None)
    if timed is not None:
        yield "speed", speed(json.loads(timed.read_text(encoding="utf-8")))


def records(held: dict[str, Any], place: str) -> str:
    """The figure and a row for each record, between the majority class and training without privacy."""
    return f"{record_table(held)}\n\n![Test accuracy of each record]({place}/records.svg)"


def read_comparison(path: Path) -> Comparison:
    """The comparison of a report.json; any other file is refused."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        check.refuse("a report.json", f"{type(error).__name__}: {error}", "give the file that discreet compare wrote")
    check.require(isinstance(held, dict), "a report.json", "another JSON file", "give discreet compare's file")
    return comparison_from_json(held)


def comparison_from_json(held: Mapping[str, Any]) -> Comparison:
    """The comparison that `Comparison.to_json` wrote; anything else is refused."""
    got, remedy = held.get("format"), "give the report.json that discreet compare wrote with this version"
    check.require(got == FORMAT, f"a file of format {FORMAT}", f"format={got!r}", remedy)
    try:
        found: Comparison = from_plain(
            Comparison, {"references": [], "measure": "accuracy", **held}
        )  # older files have none
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        check.refuse("a whole report.json", f"{type(error).__name__}: {error}", "run discreet compare again")
    return found


def put(text: str, name: str, part: str) -> str:
    """`text` with the part of this name replaced.

    >>> put("a <!-- x -->old<!-- /x --> b", "x", "new")
    'a <!-- x -->\\n\\nnew\\n\\n<!-- /x --> b'
    """
    pattern = re.compile(f"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
    check.require(
        len(pattern.findall(text)) == 1, f"one place <!-- {name} --> <!-- /{name} -->", "none", "add the marks"
    )
    return pattern.sub(lambda found: f"{found[1]}\n\n{part}\n\n{found[2]}", text)


def comparison(found: Comparison, place: str) -> str:
    """The figure, a row for each method, what could not be compared, and the command."""
    budgets = found.budgets
    held = [{entry.name: entry for entry in budget.entries} for budget in budgets]
    heads = [f"epsilon {budget.epsilon:g} ({wording.counted(budget.repeats, 'run')})" for budget in budgets]
    rows = [[entry.name, *(_accuracy(by.get(entry.name)) for by in held)] for entry in found.entries]
    rows += [[one.name, *([_share(one.accuracy)] * len(budgets))] for one in found.references]
    rest = [f"{one.method}: {one.reason or one.guarantee}" for one in found.excluded]
    parts = [
        f"![Test accuracy against certified epsilon]({place}/figures/frontier.svg)",
        f"{found.data}, {found.model}, {found.steps} steps of batch {found.batch:g}, delta {found.delta:g}; test "
        "accuracy, mean over runs with the half width of its 95 % interval:",
        _table(["method", *heads], rows),
        " ".join(told for told in (_first(found), wording.tuning(found), _unfinished(found)) if told),
        *([f"Not comparable: {'; '.join(rest)}."] if rest else []),
        f"    {found.provenance.command}",
    ]
    return "\n\n".join(parts)


def _first(found: Comparison) -> str:
    """The best method at the main budget, and what it can be told apart from."""
    if found.best is None:
        return ""
    return f"First at epsilon {found.epsilon:g}: {found.best.name}. {wording.significance(found)}".rstrip()


def _unfinished(found: Comparison) -> str:
    """How many runs are missing, if any."""
    missing = sum(len(entry.failures) for budget in found.budgets for entry in budget.entries)
    done = sum(len(entry.runs) for budget in found.budgets for entry in budget.entries)
    return f"{missing} of {done + missing} runs failed or were not made." if missing else ""


def e2e(held: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """BLEU, processor seconds and memory of each way to train the adapters."""
    rows = []
    for about, found in held:
        runs = found["runs"]
        spent, steps = (math.fsum(run[name] for run in runs) for name in ("processor_seconds", "steps"))
        epsilon, memory = (max(run[name] for run in runs) for name in ("epsilon", "peak_megabytes"))
        singles = ", ".join(f"{run['bleu']:.1f}" for run in runs)
        bleu = f"{found['bleu']:.1f}" + (f" ({singles})" if len(runs) > 1 else "")
        rows.append(
            [about, wording.epsilon(epsilon), str(len(runs)), bleu, f"{spent / steps:.1f}", f"{memory / 1000:.1f}"]
        )
    heads = ["training", "epsilon", "seeds", "BLEU", "processor seconds a step", "peak memory, GB"]
    commands = "\n".join(f"    {found['command']}" for _, found in held)
    return f"{_table(heads, rows)}\n\n{commands}"


def truth(rows: tuple[AuditRow, ...]) -> str:
    """The claims that an attack refutes."""
    broken = [row for row in rows if row.claimed is not None and row.verdict is AuditVerdict.CLAIM_BROKEN]
    shown = wording.epsilon
    cells = [
        [row.method, wording.audit_settings(row), shown(row.claimed), _shown(row), shown(row.certified)]
        for row in broken
    ]
    heads = ["method", "setting", "claimed epsilon", "an attack shows at least", "certified for the same noise"]
    return _table(heads, cells)


def speed(held: dict[str, Any]) -> str:
    """The time of a private step over that of a plain one, by model, beside other libraries that were timed."""
    timed = {name: own["rows"] for name, own in held["models"].items() if own.get("rows")}
    columns = list(dict.fromkeys(row for rows in timed.values() for row in rows if row not in _NOT_PRIVATE))
    rows = [
        [str(held["models"][name].get("about", name)), *(_ratio(rows.get(c, {})) for c in columns)]
        for name, rows in timed.items()
    ]
    return "\n\n".join(
        [
            "A private step takes this many times as long as a step of plain SGD on the same batch:",
            _table(["model", *columns], rows),
            # Rows may come from several commands; this one measures them all.
            f"    python -m research.benchmarks --threads {held['threads']} --out results/step-time.json",
        ]
    )


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['over_plain']:.2f}" if "over_plain" in row else "–"


def _share(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.1%}".replace("%", " %")


def _accuracy(entry: MethodResult | None) -> str:
    accuracy = None if entry is None else entry.accuracy
    if accuracy is None:
        return "–"
    half = wording.half(accuracy)
    return f"{accuracy.mean * 100:.1f}" + (f" {half}" if half else "") + " %"


def _shown(row: AuditRow) -> str:
    """Lower bounds, rounded down."""
    text = wording.rounded_down(row.audited)
    if row.analytic is None or row.analytic <= row.audited:
        return text
    return f"{text} (analytic: {math.floor(row.analytic * 100) / 100:g})"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
