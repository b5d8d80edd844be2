from __future__ import annotations

import enum
import inspect
from types import MappingProxyType
from typing import Any, Literal

import pytest
from cli_runner import GOLDEN, refused, replaced, run

from discreet import methods
from discreet.cli import entry, recipes
from discreet.cli.entry import COMMANDS, ListedCommand
from discreet.methods import METHODS, Method
from discreet.methods.geodp.recipes import GeoDpOneStepClaim
from discreet.stages.plan import Plan


class Shape(enum.Enum):
    ROUND = "round"
    SQUARE = "square"


SEEN: dict[str, Any] = {}


def new_recipe(
    radius: float,
    clip: float = 2.0,
    sweeps: int = 3,
    sound: bool = True,
    shape: Shape = Shape.ROUND,
    widths: tuple[int, ...] = (4, 2),
    ceiling: float | None = None,
    mark: str = "x",
    side: Literal["left", "right"] = "left",
    rate: float = 0.5,
) -> Plan:
    """A recipe that the command line has never seen."""
    SEEN.update(locals())
    return methods.dp_sgd(clip).using(method="new-one")


@pytest.fixture
def new_method(monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    method = Method(name="new-one", recipe=new_recipe, guarantee="certified: for a test")
    monkeypatch.setattr(recipes, "METHODS", MappingProxyType({**METHODS, method.name: method}))


@pytest.mark.usefixtures("new_method")
def test_a_new_recipe_gets_all_its_flags() -> None:
    words = replaced(GOLDEN, method="new-one", steps="2", radius="0.5")
    answer = run("account", *words, "--json").json
    assert answer["method"] == "new-one"
    defaults = {name: p.default for name, p in inspect.signature(new_recipe).parameters.items()}
    assert {**defaults, "radius": 0.5} == SEEN

    more = "--clip 3 --sweeps 4 --no-sound --shape square --widths 8,9 --ceiling 1e3 --mark y --side right"
    assert run("account", *words, *more.split(), "--new-one-rate", "0.25", "--json").code == 0
    assert SEEN == {
        "radius": 0.5,
        "clip": 3.0,
        "sweeps": 4,
        "sound": False,
        "shape": Shape.SQUARE,
        "widths": (8, 9),
        "ceiling": 1000.0,
        "mark": "y",
        "side": "right",
        "rate": 0.25,
    }
    assert isinstance(SEEN["clip"], float)
    run("account", *words, "--ceiling", "none", "--sound")
    assert SEEN["ceiling"] is None
    assert SEEN["sound"] is True
    assert "new-one" in run("methods").out
    assert "--radius" in run("account", "--help", "new-one").out
    assert "--radius" not in run("account", "--help").out


@pytest.mark.usefixtures("new_method")
@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ([], ["--radius for new-one"]),
        (["--radius", "x"], ["--radius to be number", "'x'"]),
        (["--radius", "1", "--sweeps", "1.5"], ["--sweeps to be whole number"]),
        (["--radius", "1", "--shape", "oval"], ["round|square", "'oval'"]),
        (["--radius", "1", "--side", "up"], ["left|right"]),
        (["--radius", "1", "--widths", "1,,2"], ["list of whole number"]),
        (["--radius", "1", "--gamma", "1"], ["--gamma", "auto-s", "--radius"]),
    ],
)
def test_bad_values_are_refused(more: list[str], parts: list[str]) -> None:
    refused(run("account", *replaced(GOLDEN, method="new-one"), *more), *parts)


@pytest.mark.usefixtures("new_method")
def test_its_flags_belong_to_no_other_method() -> None:
    refused(run("account", *GOLDEN, "--radius", "1"), "flags of dp-sgd (--clip)", "--radius", "new-one")
    refused(run("account", *GOLDEN, "--no-sound"), "--sound", "new-one")


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_recipe_can_be_said_completely(method: Method) -> None:
    """Nobody adds a parameter that no flag can set, or one without a default."""
    names = [parameter.name for parameter in recipes.parameters(method)]
    assert names == list(inspect.signature(method.recipe).parameters)
    said = {parameter.key: recipes.shown(parameter.default) for parameter in recipes.parameters(method)}
    defaults = {parameter.name: parameter.default for parameter in recipes.parameters(method)}
    assert recipes.arguments(method, said) == defaults


@pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.name)
def test_no_word_means_two_things(listed: ListedCommand) -> None:
    command = listed.load()
    assert {name for group in entry._groups(command).values() for name in group} <= recipes.RESERVED
    names = list(inspect.signature(entry.expanded(command)).parameters)
    assert len(names) == len(set(names))


def claiming_recipe(clip: float = 1.0, claimed_noise: float = 2.0) -> Plan:
    """A recipe whose paper claims something."""
    claim = GeoDpOneStepClaim(noise=claimed_noise, beta=0.75)
    return methods.dp_sgd(clip).using(claims=lambda plan: claim)


def test_a_claim_stands_beside_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method(name="claiming", recipe=claiming_recipe, guarantee="certified: for a test")
    monkeypatch.setattr(recipes, "METHODS", MappingProxyType({method.name: method}))
    words = replaced(GOLDEN, method="claiming", steps="1")
    answer = run("account", *words, "--json").json
    claim = GeoDpOneStepClaim(noise=2.0, beta=0.75)
    assert answer["claimed"] == {"epsilon": claim.epsilon(1e-5), "delta": 0.25001, "theorem": claim.theorem}
    assert answer["certified"] == run("account", *words, "--claimed-noise", "9", "--json").json["certified"]
    shown = run("account", *words).out
    assert "2.43" in shown  # 2.4224 rounded up
    assert "Lemma 2" in shown
    assert run("account", *words, "--claimed-noise", "0", "--json").json["claimed"]["epsilon"] == "inf"
