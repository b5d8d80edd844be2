"""Correlated noise between the rounds of a federation: separation by name, noise over restarts, bounds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import Horizon, PrivateRounds, SampledUsers, methods
from discreet.accounting.correlated import Toeplitz
from discreet.accounting.ledger import read
from discreet.core.check import Refused
from discreet.core.streams import Streams
from discreet.methods.dp_ftrl.correlated_noise import Strategy
from discreet.stages.plan import Plan
from discreet.training.noise_keys import NoiseKeys

CLIP, CLIENTS, SIZE, PLACES = 0.5, 12, 10, 3
NAMES = [f"phone-{number}" for number in range(CLIENTS)]
RECIPE = methods.dp_ftrl(clip=CLIP, strategy=Strategy.BSR, bands=2).using(unit=SampledUsers(per_user=8, name="phone"))


def plan(*, noise: float = 1.0, steps: int = 9) -> Plan:
    horizon = Horizon.of(records=CLIENTS, batch=CLIENTS / PLACES, steps=steps)
    return RECIPE.bind(noise=noise, horizon=horizon, delta=1e-3)


def rounds(which: Plan | None = None, **options: Any) -> PrivateRounds:
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    options.setdefault("streams", Streams.seeded(3))
    return PrivateRounds(model, torch.optim.SGD(model.parameters(), lr=1.0), which or plan(), **options)


def flat(which: PrivateRounds) -> Tensor:
    return -torch.cat([parameter.detach().flatten() for parameter in which.model.parameters()]).double()


def released(which: PrivateRounds, given: dict[str, Tensor] | None = None, names: list[str] | None = None) -> Tensor:
    """The sum that a round releases, in clips times noise if nobody sends anything."""
    before, there = flat(which), NAMES if names is None else names
    drawn = which.draw(there)
    for place in drawn.tolist():
        if given is not None and there[place] in given:
            which.add(place, given[there[place]])
    which.release()
    return (flat(which) - before) * which.plan.horizon.size.batch


def test_a_client_comes_back_once_an_epoch_whoever_else_is_there() -> None:
    which, joined = rounds(), dict[str, list[int]]()
    for step in range(9):
        there = NAMES[step % 4 :][:: -1 if step % 2 else 1]  # others leave, and the order changes
        for place in which.draw(there).tolist():
            joined.setdefault(there[place], []).append(step)
        which.release()
    assert len({steps[0] % PLACES for steps in joined.values()}) == PLACES
    for name, steps in joined.items():
        apart = [later - earlier for earlier, later in pairwise(steps)]
        assert all(distance % PLACES == 0 and distance > 0 for distance in apart), name
    assert joined[NAMES[-1]] == list(range(joined[NAMES[-1]][0], 9, PLACES))  # one that is always there


def test_places_of_numbers_would_not_be_kept() -> None:
    """The control: by their place in the list, clients that move up in it would come back too early."""
    which, joined = rounds(), dict[str, list[int]]()
    for step in range(9):
        there = NAMES[step:] + NAMES[:step]
        numbered = [str(place) for place in range(CLIENTS)]
        for place in which.draw(numbered).tolist():
            joined.setdefault(there[place], []).append(step)
        which.release()
    pairs = [pair for steps in joined.values() for pair in pairwise(steps)]
    assert any((later - earlier) % PLACES for earlier, later in pairs)


def test_a_liar_moves_all_releases_together_by_what_is_charged() -> None:
    """One client more, which is huge in every round that it joins: in the metric of the noise, at most s clips."""
    which = plan(noise=1e-9)
    runs = []
    for given in ({}, {NAMES[-1]: torch.full((SIZE,), 1e30)}):
        run = rounds(which)
        runs.append(torch.stack([released(run, given) for _ in range(9)]))
    moved = (runs[1] - runs[0]) / CLIP
    joined = moved.norm(dim=1) > 0.5
    assert int(joined.sum()) == 9 // PLACES
    weights = torch.zeros(9, 9, dtype=torch.float64)  # C of two bands: 1 and 1/2
    weights += torch.eye(9) + 0.5 * torch.diag(torch.ones(8), -1)
    charged = Toeplitz((1.0, 0.5)).separated(steps=9, most=3, apart=PLACES)
    assert charged == pytest.approx((3 * 1.25) ** 0.5)
    last = 1.25 if int(joined.nonzero()[-1]) < 8 else 1.0  # the last column may be cut
    assert float((weights @ moved).norm()) == pytest.approx((2 * 1.25 + last) ** 0.5, rel=1e-4)
    assert float((weights @ moved).norm()) <= charged * (1 + 1e-5)


def test_noise_takes_back_a_part_of_the_last_also_after_a_restart(tmp_path: Path) -> None:
    ledger, saved, which = tmp_path / "ledger.jsonl", tmp_path / "checkpoint", plan()
    first, second = Streams.seeded(5), Streams.seeded(6)
    run = rounds(which, ledger=ledger, streams=first)
    places = run.draw(NAMES).tolist()
    run.release()
    seen = [flat(run) * 4 / CLIP]
    seen.append(released(run) / CLIP)
    run.save(saved)
    run.draw(NAMES)  # the server stops inside a round
    run.close()
    assert NoiseKeys.path_of(ledger).exists()
    again = rounds(which, ledger=ledger, resume=saved, streams=second)
    assert again.left == 7
    seen += [released(again) / CLIP for _ in range(2)]
    z = [
        *(Streams.seeded(5).noise.at(step).normal(SIZE, dtype=torch.float64) for step in (0, 1)),
        *(Streams.seeded(6).noise.at(step).normal(SIZE, dtype=torch.float64) for step in (2, 3)),
    ]
    for step in range(1, 4):
        assert torch.allclose(seen[step] + 0.5 * seen[step - 1], z[step], atol=1e-4), step
    assert again.draw(NAMES) is not None
    again.release()
    again.draw(NAMES)
    again.release()
    assert again.draw(NAMES).tolist() == places  # step 6: the clients of step 0, by the key of the first start
    while again.left > 0:
        again.release()
        if again.left:
            again.draw(NAMES)
    assert not NoiseKeys.path_of(ledger).exists()  # the run has ended
    assert again.spent().certified.epsilon == which.certificate().epsilon
    record = read(ledger)
    assert [entry.step for entry in record.entries] == list(range(9))
    assert any("keeps its name" in text for text in again.spent().certified.assumptions)


def test_lost_keys_are_charged_again(tmp_path: Path) -> None:
    ledger, saved, which = tmp_path / "ledger.jsonl", tmp_path / "checkpoint", plan()
    run = rounds(which, ledger=ledger, streams=Streams.from_os())
    released(run)
    run.save(saved)
    run.close()
    NoiseKeys.path_of(ledger).unlink()
    again = rounds(which, ledger=ledger, resume=saved, streams=Streams.from_os())
    assert again.left == 7  # one round is left out for the charge
    released(again)
    assert again.spent().certified.epsilon > 1.3 * which.certificate().epsilon


def test_the_price_is_that_of_the_separation() -> None:
    close = RECIPE.bind(noise=1.0, horizon=Horizon.of(records=CLIENTS, batch=CLIENTS, steps=9), delta=1e-3)
    assert plan().certificate().epsilon < 0.6 * close.certificate().epsilon
    assert plan().neighbours == "add/remove of one phone"


def test_what_is_refused() -> None:
    with pytest.raises(Refused, match="names of clients for correlated noise"):
        rounds().draw(CLIENTS)
    with pytest.raises(Refused, match="clients with different names"):
        rounds().draw(["a", "b", "a"])
    cyclic = methods.bandmf(clip=CLIP).using(unit=SampledUsers(per_user=8))
    horizon = Horizon.of(records=CLIENTS, batch=2, steps=9)
    with pytest.raises(Refused, match="decides for each client alone"):
        rounds(cyclic.bind(noise=1.0, horizon=horizon, delta=1e-3))
