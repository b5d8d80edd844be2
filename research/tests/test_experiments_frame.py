"""The frame of the experiments: kept runs, records, the page, the command."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest
from cli_runner import refused, run

from discreet.core.check import Refused
from discreet.runs import RunConfig
from discreet.runs.folder import RunFolder
from research import reproductions as experiments
from research.extra import require_packages
from research.reproductions import (
    EXPERIMENTS,
    Bench,
    Curve,
    Experiment,
    Figure,
    Outcome,
    Row,
    Status,
    accuracy_row,
    mean_and_error,
    measured,
    pages,
    perform,
    results,
)
from research.reproductions.__main__ import main
from research.reproductions.bench import key_of

ROOT = Path(__file__).resolve().parents[2]
SMALL = RunConfig(
    data="digits",
    model="softmax",
    method="dp-sgd",
    noise=2.0,
    delta=1e-5,
    batch=64,
    steps=4,
    eval_every=2,
    learning_rate=0.5,
    seed=0,
    public_data=True,
    out="",
)


def bench(folder: Path, *, quick: bool = True, seeds: tuple[int, ...] = (0,)) -> Bench:
    return Bench(quick=quick, seeds=seeds, folder=folder)


def outcome(status: Status = Status.PARTLY) -> Outcome:
    rows = (
        Row(setting="A | B", paper=71.3, ours=78.04, spread=0.3, seeds=3, certified=1.0, claimed=0.9),
        Row(setting="SGD", ours=90.0, certified=math.inf, note="no privacy"),
    )
    curve = Curve(name="A", x=(0.0, 1.0), y=(2.0, 1.0))
    figure = Figure(name="loss", title="Loss", x_label="epoch", y_label="loss", curves=(curve,), log_y=True)
    return Outcome(
        unit="test accuracy, %", rows=rows, figures=(figure,), status=status, summary="A loses.", guesses=("delta",)
    )


TOY = Experiment(
    name="toy-table-1",
    paper="999 toy",
    artefact="Table 1",
    what="a toy",
    minutes_quick=0.1,
    minutes_full=2,
    run=lambda _: outcome(),
)


# -- kept runs ----------------------------------------------------------------------------------------------------


def test_a_run_is_trained_once_and_read_after(tmp_path: Path) -> None:
    first, second = bench(tmp_path), bench(tmp_path)
    one, two = first.train(SMALL), second.train(SMALL)
    assert (first.trained, second.trained) == (1, 0)
    assert one.test_accuracy == two.test_accuracy
    assert one.spent == two.spent
    assert second.seconds == one.seconds  # the record counts kept runs
    assert one.directory.parent == tmp_path / "runs"


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from discreet.training.private import Private

    step = Private.step
    steps = 0

    def interrupted(self: Private, losses: object) -> bool:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step(self, losses)  # type: ignore[arg-type]

    monkeypatch.setattr(Private, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path).train(SMALL)
    monkeypatch.setattr(Private, "step", step)
    result = bench(tmp_path).train(SMALL)
    assert (result.steps, result.resumes) == (4, 1)


def test_what_changes_the_run_changes_its_place() -> None:
    place = key_of(SMALL)
    for change in ({"seed": 1}, {"noise": 2.1}, {"parameters": (("clip", 0.3),)}, {"eval_every": 4}):
        assert key_of(dataclasses.replace(SMALL, **change)) != place  # type: ignore[arg-type]
    for change in ({"out": "elsewhere"}, {"micro_batch": 7}, {"data_dir": "there"}):
        assert key_of(dataclasses.replace(SMALL, **change)) == place  # type: ignore[arg-type]


def test_one_run_for_each_seed(tmp_path: Path) -> None:
    found = bench(tmp_path, seeds=(3, 4)).train_seeds(SMALL)
    row = accuracy_row("DPSGD", found, paper=50.0)
    assert row.seeds == 2
    assert row.ours == pytest.approx(50 * (found[0].test_accuracy + found[1].test_accuracy))
    assert row.certified == found[0].spent.certified.epsilon
    assert row.claimed is None
    assert {RunFolder(one.directory).directory.name.split("-seed-")[1][0] for one in found} == {"3", "4"}


def test_losses_are_measured_on_public_records(tmp_path: Path) -> None:
    result = bench(tmp_path).train(SMALL)
    for name in ("test_loss", "train_loss", "epsilon"):
        steps, values = measured(result, name)
        assert steps == (2.0, 4.0)
        assert all(value > 0 for value in values)
    private = bench(tmp_path).train(dataclasses.replace(SMALL, public_data=False))
    for name in ("train_loss", "test_loss"):
        assert measured(private, name) == ((), ())


def test_without_privacy(tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, steps=60, eval_every=30, learning_rate=1.0)
    first = bench(tmp_path).train_without_privacy(config)
    again = bench(tmp_path).train_without_privacy(config)
    assert first == again
    assert first.test_accuracy > 0.8  # digits, softmax: noiseless training learns it
    assert [line[0] for line in first.curve] == [30, 60]
    assert first.curve[1][3] < first.curve[0][3]


def test_other_work_is_remembered(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, float]:
        calls.append(1)
        return {"found": math.inf, "number": 3}

    for _ in range(2):
        kept = bench(tmp_path).remember({"what": "mse", "d": 4}, compute)
        assert kept == {"found": "inf", "number": 3}
    assert len(calls) == 1
    bench(tmp_path).remember({"what": "mse", "d": 5}, compute)
    assert len(calls) == 2


def test_means() -> None:
    assert mean_and_error((2.0,)) == (2.0, None)
    with pytest.raises(Refused, match="at least one value"):
        mean_and_error(())


# -- records and the page -----------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = perform(
        TOY, bench(tmp_path, quick=False, seeds=(0, 1)), command="python -m research.reproductions toy-table-1"
    )
    assert results.read("toy-table-1", tmp_path) is None
    place = results.write(record, tmp_path)
    assert place == tmp_path / "reproductions" / "toy-table-1.json"
    assert results.read("toy-table-1", tmp_path) == record
    assert json.loads(place.read_text())["outcome"]["rows"][1]["certified"] == "inf"
    assert "not private" in record.randomness


def test_a_quick_record_never_replaces_a_full_one(tmp_path: Path) -> None:
    quick = perform(TOY, bench(tmp_path), command="quick")
    results.write(quick, tmp_path)
    assert results.read("toy-table-1", tmp_path) == quick
    full = perform(TOY, bench(tmp_path, quick=False), command="full")
    results.write(full, tmp_path)
    results.write(quick, tmp_path)
    assert results.read("toy-table-1", tmp_path) == full


def test_a_torn_record_is_named(tmp_path: Path) -> None:
    place = tmp_path / "reproductions" / "toy-table-1.json"
    place.parent.mkdir()
    place.write_text('{"name": "toy-table-1"}')
    with pytest.raises(Refused, match="the record of a reproduction"):
        results.read("toy-table-1", tmp_path)


def test_the_page_shows_both_numbers_and_the_difference(tmp_path: Path) -> None:
    record = perform(TOY, bench(tmp_path, quick=False), command="python -m research.reproductions toy-table-1")
    results.write(record, tmp_path / "results")
    other = dataclasses.replace(TOY, name="toy-table-2")
    text = pages.render((TOY, other), results=tmp_path / "results", docs=tmp_path / "docs")
    assert "| A \\| B | 71.3 | 78.04 ± 0.3 | +6.74 | 1.00 | 0.9 | 3 |" in text
    assert "no proven guarantee" in text
    assert "(../results/reproductions/figures/toy-table-1-loss.svg)" in text
    assert "**Partly.** A loses." in text
    assert "| `toy-table-2` | 999 toy | Table 1 | 0.1 / 2 | not run |" in text
    assert "- delta" in text


def test_the_page_in_the_repository_is_that_of_its_results() -> None:
    written = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    made = pages.render(EXPERIMENTS.values(), results=ROOT / "results", docs=ROOT / "docs")
    assert written == made, "run `python -m research.reproductions --docs`"


def test_figures_in_the_repository_are_there() -> None:
    records = [results.read(name, ROOT / "results") for name in EXPERIMENTS]
    files = [
        ROOT / "results" / "reproductions" / results.figure_path(record, figure, suffix)
        for record in records
        if record is not None
        for figure in record.outcome.figures
        for suffix in ("svg", "png")
    ]
    assert len(files) > 50  # control: there are records with figures
    assert [file.name for file in files if not file.is_file()] == []


def test_a_curve_has_as_many_y_as_x() -> None:
    with pytest.raises(Refused, match="as many x as y"):
        Curve(name="A", x=(1.0,), y=())
    with pytest.raises(Refused, match="letters, digits and hyphens"):
        Figure(name="../loss", title="", x_label="", y_label="", curves=())


# -- the list and the command -------------------------------------------------------------------------------------


def test_every_experiment_says_what_it_is() -> None:
    assert {"d2p2-figure-3", "d2p2-table-2", "d2p2-figures-4-5-6"} <= set(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        assert name == experiment.name
        assert all((experiment.paper, experiment.artefact, experiment.what))
        assert 0 < experiment.minutes_quick <= experiment.minutes_full


def test_no_two_experiments_share_a_name() -> None:
    papers = (experiments.d2p2, experiments.random_freeze, experiments.geodp, experiments.dpsgd_dc, experiments.dicesgd)
    assert sum(len(paper.EXPERIMENTS) for paper in papers) == len(EXPERIMENTS)


def test_the_readme_names_every_experiment_and_its_file() -> None:
    """A row of the table is `paper/file.py`, what it reproduces, and the experiments."""
    readme = (ROOT / "research" / "README.md").read_text(encoding="utf-8")
    folder = ROOT / "research" / "reproductions"
    listed = {line.split("`")[1]: line for line in readme.splitlines() if line.startswith("| `") and ".py`" in line}
    assert [name for name in listed if not (folder / name).is_file()] == []
    files = {
        str(file.relative_to(folder))
        for file in folder.glob("*/*.py")
        if file.name.startswith(("table", "figure", "appendix"))
    }
    assert files <= listed.keys()
    assert [name for name in EXPERIMENTS if sum(f"`{name}`" in line for line in listed.values()) != 1] == []


@pytest.fixture
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "EXPERIMENTS", {TOY.name: TOY})


@pytest.mark.usefixtures("_toy")
def test_the_command_writes_record_figures_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/__main__.py", TOY.name, "--quick"])
    out, kept, page = tmp_path / "results", tmp_path / "runs", tmp_path / "reproductions.md"
    words = ("--out", out, "--runs", kept, "--page", page, "--docs")
    answer = run(TOY.name, "--quick", "--json", *words, program=main).json
    assert answer["records"][0]["name"] == TOY.name
    assert answer["records"][0]["command"] == "python -m research.reproductions toy-table-1 --quick"
    folder = out / "reproductions"
    assert (folder / "toy-table-1.quick.json").is_file()
    for suffix in ("svg", "png"):
        assert (folder / "figures" / f"toy-table-1-loss.quick.{suffix}").stat().st_size > 1000
    assert "(results/reproductions/figures/toy-table-1-loss.quick.svg)" in page.read_text()
    listed = run("--list", "--json", "--out", out, program=main).json["experiments"]
    assert [(row["name"], row["status"], row["minutes_full"]) for row in listed] == [(TOY.name, "partly (quick)", 2)]
    shown = run("--list", "--out", out, program=main)
    assert shown.code == 0
    assert TOY.name in shown.out


@pytest.mark.usefixtures("_toy")
def test_the_same_figure_gives_the_same_file(tmp_path: Path) -> None:
    for place in ("one", "two"):
        run(TOY.name, "--json", "--out", tmp_path / place, "--runs", tmp_path / "runs", program=main)
    files = [(tmp_path / place / "reproductions/figures/toy-table-1-loss.svg") for place in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "--list"),
        (("no-such-table",), "no-such-table"),
        (("d2p2-table-2", "--seeds", "a"), "--seeds"),
        (("d2p2-table-2", "--seeds", "1,1"), "different seeds"),
        (("--docs", "--page", "/dev/null/page.md"), "can be written"),
        (("d2p2-table-2", "--sedes", "1"), "--seeds"),
    ],
)
def test_what_the_command_refuses(words: tuple[str, ...], part: str) -> None:
    refused(run(*words, program=main), part)


@pytest.mark.parametrize("flag", ["--out", "--runs", "--page"])
def test_a_path_that_cannot_be_written_is_refused_before_the_work(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    toy = dataclasses.replace(TOY, run=lambda _: ran.append("ran") or outcome())
    monkeypatch.setattr(experiments, "EXPERIMENTS", {TOY.name: toy})
    places = {"--out": tmp_path / "results", "--runs": tmp_path / "runs", "--page": tmp_path / "page.md"}
    words = [word for pair in places.items() for word in pair]
    assert run(TOY.name, "--docs", *words, program=main).code == 0
    assert ran == ["ran"]  # control: with usable paths it runs
    (tmp_path / "file").write_text("")
    places[flag] = tmp_path / "file" / "below"
    words = [word for pair in places.items() for word in pair]
    refused(run(TOY.name, "--docs", *words, program=main), "can be written", str(tmp_path / "file"))
    assert ran == ["ran"]


def test_a_missing_package_is_named_before_the_work() -> None:
    with pytest.raises(Refused, match=r"no no_such_package\. Remedy: pip install -c constraints\.txt"):
        require_packages(("torch", "no_such_package"))
    require_packages(("torch",))
