"""Digests of the states of generators."""

from __future__ import annotations

import torch

from discreet.engine.proof.draws.states import StateDigests


def test_every_part_of_a_state_counts() -> None:
    """Also after another state with the same words, and after one with others."""
    generator, digests = torch.Generator().manual_seed(3), StateDigests()
    state = generator.get_state()
    seen = {digests.of(state)}
    for place in (*range(32), 2000, 5008, 5015, 5016, 5040, len(state) - 1):
        other = state.clone()
        other[place] ^= 1
        seen.add(digests.of(other))
        assert digests.of(state) in seen
        assert digests.of(other) == StateDigests().of(other)
    assert len(seen) == 39


def test_each_draw_leaves_another_state() -> None:
    generator, digests = torch.Generator().manual_seed(3), StateDigests()
    seen = [digests.of(generator.get_state())]
    for count in [1] * 700 + [16, 624, 5000]:  # across new words, and with normals that are left
        torch.randn(count, generator=generator)
        seen.append(digests.of(generator.get_state()))
    assert len(set(seen)) == len(seen)
    generator.manual_seed(3)
    assert digests.of(generator.get_state()) == seen[0]


def test_short_states_are_hashed_whole() -> None:
    digests = StateDigests()
    state = torch.arange(16, dtype=torch.uint8)
    assert len({digests.of(state), digests.of(state + 1), digests.of(state[:15])}) == 3
