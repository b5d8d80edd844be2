"""Secret keys for the global generators: what they draw, and that the user's states come back."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from discreet.core.secret_draws import KeyedWorker, SecretDraws, default_generators, seed_default_generators
from discreet.core.streams import Streams


def states() -> list[Any]:
    """Where the three global generators stand."""
    numpys: Any = np.random.get_state()
    return [torch.get_rng_state().tolist(), random.getstate(), (*numpys[:1], numpys[1].tolist(), *numpys[2:])]


def draw() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


@pytest.fixture
def draws() -> Iterator[SecretDraws]:
    made = SecretDraws(Streams.seeded(3).draws)
    yield made
    made.close()


def words() -> np.ndarray[Any, Any]:
    return torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)


def test_the_state_is_624_words_of_the_stream(draws: SecretDraws) -> None:
    """Also words of which a seed of 32 bits would give the rest."""
    draws.open()
    expected = Streams.seeded(3).draws.uniform64(313)
    assert torch.initial_seed() == expected[0]
    assert words().tolist() == expected[1:].view(np.uint32).tolist()
    first, second = map(int, words()[:2])
    assert second != (1812433253 * (first ^ (first >> 30)) + 1) % 2**32
    other = torch.Generator().manual_seed(torch.initial_seed())
    assert not torch.equal(torch.rand(9), torch.rand(9, generator=other))


def test_torch_goes_on_as_a_reference_does_from_the_same_words(draws: SecretDraws) -> None:
    """NumPy's mt19937 from the same 624 words draws the same 32-bit numbers: the layout is right."""
    draws.open()
    reference = np.random.RandomState()
    reference.set_state(("MT19937", words().astype(np.uint32), 624, 0, 0.0))
    expected = reference.randint(0, 2**32, 2000, dtype=np.uint32)
    drawn = torch.randint(0, 2**24, (2000,))  # 32 bits modulo the range
    assert drawn.tolist() == (expected % 2**24).tolist()


def test_draws_are_uniform_and_normal(draws: SecretDraws) -> None:
    """Kolmogorov-Smirnov distances of 100 000 numbers from 50 states; more than 0.0072 has probability 1e-4."""
    uniform, normal = [], []
    for _ in range(50):
        draws.open()
        uniform.append(torch.rand(2000, dtype=torch.float64))
        normal.append(torch.randn(2000, dtype=torch.float64))
    for values in (torch.cat(uniform), torch.special.ndtr(torch.cat(normal))):
        ordered = values.sort().values
        assert float((ordered - torch.linspace(0, 1, len(ordered), dtype=torch.float64)).abs().max()) < 0.0072


def test_no_normal_of_before_is_left(draws: SecretDraws) -> None:
    """torch keeps the second normal of a pair."""
    torch.randn((), dtype=torch.float64)
    draws.open()
    first = torch.randn((), dtype=torch.float64)
    draws.close()
    again = SecretDraws(Streams.seeded(3).draws)
    again.open()
    assert torch.randn((), dtype=torch.float64) == first
    again.close()


def test_every_opening_draws_other_numbers_whatever_the_users_seed(draws: SecretDraws) -> None:
    found = []
    for _ in range(20):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with draws.keyed():
            found.append(draw())
    for numbers in zip(*found, strict=True):
        assert len(set(numbers)) == 20


def test_a_seeded_stream_repeats_all_three() -> None:
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with SecretDraws(Streams.seeded(3).draws).keyed():
            found.append(draw())
    assert found[0] == found[1]


@pytest.mark.parametrize("fails", [False, True])
def test_the_users_states_come_back(draws: SecretDraws, fails: bool) -> None:
    np.random.randn()  # NumPy keeps the second normal of a pair
    torch.randn((), dtype=torch.float64)
    before = states()
    try:
        with draws.keyed():
            draw()
            random.seed(0)
            np.random.seed(0)
            torch.manual_seed(0)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert states() == before


def test_one_that_closes_late_leaves_the_draws_of_another(draws: SecretDraws) -> None:
    """A loop that was left in the middle of a batch is collected in the middle of another's."""
    left, before = SecretDraws(Streams.seeded(4).draws), states()
    left.open()
    draws.open()
    keyed = states()
    left.close()
    assert states() == keyed != before
    draws.close()
    assert states() == before


def test_numpys_generator_of_another_kind_comes_back(draws: SecretDraws) -> None:
    before = mtrand.get_bit_generator()
    own = np.random.PCG64(1)
    try:
        mtrand.set_bit_generator(own)
        with draws.keyed():
            np.random.rand()
        assert mtrand.get_bit_generator() is own
        assert own.state == np.random.PCG64(1).state
    finally:
        mtrand.set_bit_generator(before)


def test_workers_have_keys_of_their_own() -> None:
    key, found = SecretDraws(Streams.seeded(3).draws).key_for_workers(), []
    for worker in (0, 1, 0):
        with SecretDraws(Streams.from_os().draws).keyed():  # restores what the worker sets
            KeyedWorker(key)(worker)
            found.append(draw())
    assert found[0] == found[2]
    assert all(one != other for one, other in zip(found[0], found[1], strict=True))


def test_devices_are_seeded_with_64_bits() -> None:
    """A generator that stands for one of a device: such generators take a seed of 64 bits."""

    class OnDevice:
        device, seed = torch.device("cuda", 0), 0

        def manual_seed(self, seed: int) -> None:
            self.seed = seed

    device: Any = OnDevice()
    SecretDraws(Streams.seeded(3).draws)._key(device)
    assert device.seed == Streams.seeded(3).draws.uniform64(1)[0] > 2**32


def test_the_own_generators_are_those_of_devices_in_use() -> None:
    assert default_generators()[0] is torch.default_generator
    assert len(default_generators()) == 1 + torch.cuda.device_count()


def test_seeds_for_made_up_values_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng():
        expected = torch.manual_seed(5).get_state()
        monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # it would format the stack
        seed_default_generators(5)
        assert torch.equal(torch.get_rng_state(), expected)
