"""Secret keys for the global generators of torch, Python and NumPy while records are processed.

Dropout, augmentation and transforms draw from the global generators, whose seeds are often known: torch starts from a
constant, and programs call `torch.manual_seed(0)`. With known numbers a dropout mask is a function of the place in the
batch, and leaving one record out gives all later records other masks.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Final, final

import numpy as np
import torch
from numpy.random import mtrand

from discreet.core import check
from discreet.core.streams import Stream

# The state of torch's CPU generator (mt19937): the seed, numbers left and whether it is seeded, the next word; then 624
# words of 32 bits, each in 64; then normals that were drawn and not used.
_STATE_BYTES: Final = 5056
_SEED: Final = slice(0, 8)
_LEFT: Final = slice(8, 16)
_NEXT: Final = slice(16, 24)
_STATE_WORDS: Final = 624
_TWISTER: Final = slice(24, 24 + 8 * _STATE_WORDS)
_KEY_WORDS: Final = 4  # 256 bits for the generators of Python and NumPy


@final
class SecretDraws:
    """Keys the global generators from a secret stream, and gives the user's states back.

    Guarantee: between `open` and `close` torch's generators draw from states that the next words of the stream make,
    new for each call of `open`: 19937 bits on the CPU, 64 bits on other devices. Inside `keyed` and `others_keyed` the
    generators of Python and NumPy do so from 256 bits each. Afterwards all of them stand where they stood before, also
    after an error.
    """

    def __init__(self, stream: Stream) -> None:
        _check_layout()
        self._stream = stream
        self._memory = np.zeros(_STATE_BYTES, dtype=np.uint8)
        self._memory[_LEFT].view(np.uint32)[:] = 1  # the next draw makes 624 new words; seeded
        self._state, self._twister = torch.from_numpy(self._memory), self._memory[_TWISTER].view(np.uint64)
        self._of_numpy = np.random.MT19937(0)  # stands in for the user's
        self._before: list[tuple[torch.Generator, torch.Tensor]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether torch's generators are keyed."""
        return self._before is not None

    def open(self) -> None:
        """Key torch's generators, until `close`."""
        self.close()
        self._before = [(generator, generator.get_state()) for generator in default_generators()]
        _OPEN.append(self)
        for generator, _ in self._before:
            self._key(generator)

    def close(self) -> None:
        """Give torch's generators the states from before `open`.

        If another was opened since, it goes on with its own, and gives these back when it closes: a loop that was left
        in the middle of a batch is closed whenever Python collects it.
        """
        before, self._before = self._before, None
        if before is None:
            return
        later = _OPEN[_OPEN.index(self) + 1 :] if self in _OPEN else []  # Ctrl-C may have come before
        _OPEN[:] = [one for one in _OPEN if one is not self]
        if later:
            later[0]._before = before
            return
        for generator, state in before:
            generator.set_state(state)

    @contextmanager
    def keyed(self) -> Iterator[None]:
        """Key the generators of torch, Python and NumPy inside the block."""
        self.open()
        try:
            with self.others_keyed():
                yield
        finally:
            self.close()

    @contextmanager
    def others_keyed(self) -> Iterator[None]:
        """Key the generators of Python and NumPy inside the block."""
        # NumPy keeps a drawn normal beside its bit generator, so both are restored.
        python, numpys, numpy_state = random.getstate(), mtrand.get_bit_generator(), _numpy_state()
        try:
            self._key_others()
            yield
        finally:
            random.setstate(python)
            mtrand.set_bit_generator(numpys)
            np.random.set_state(numpy_state)

    def key_process(self) -> None:
        """Key all generators for the rest of this process, such as a worker that loads records."""
        for generator in default_generators():
            self._key(generator)
        self._key_others()

    def key_for_workers(self) -> bytes:
        """A new secret key for processes that load records; `KeyedWorker` uses it."""
        return self._stream.uniform64(_KEY_WORDS).tobytes()

    def seed(self) -> int:
        """A new secret seed of 64 bits."""
        return int(self._stream.uniform64(1)[0])

    def _key(self, generator: torch.Generator) -> None:
        if generator.device.type != "cpu":
            generator.manual_seed(self.seed())
            return
        words = self._stream.uniform64(1 + _STATE_WORDS // 2)
        self._memory[_SEED].view(np.uint64)[:] = words[0]  # shows another seed that is set in the batch
        self._twister[:] = words[1:].view(np.uint32)
        generator.set_state(self._state)

    def _key_others(self) -> None:
        random.seed(int.from_bytes(self._stream.uniform64(_KEY_WORDS).tobytes(), "little"))
        mtrand.set_bit_generator(self._of_numpy)
        np.random.seed(self._stream.uniform64(_KEY_WORDS).view(np.uint32))


_OPEN: Final[list[SecretDraws]] = []
"""Those that are open, in the order in which they were opened: torch has one generator for all runs of a process."""


@final
class KeyedWorker:
    """Keys the generators of a worker process of a `DataLoader` (as its `worker_init_fn`), each by a key of its own.

    key  of `SecretDraws.key_for_workers`
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, worker: int) -> None:
        stream = Stream(self._key, name="draws of workers", replayable=False)
        SecretDraws(stream.at(worker)).key_process()


def default_generators() -> tuple[torch.Generator, ...]:
    """Torch's own generators, of all devices that are in use."""
    on_devices: list[torch.Generator] = []
    for backend in (torch.cuda, torch.xpu):
        on_devices += backend.default_generators if backend.is_initialized() else ()
    if _has_mps():
        on_devices.append(torch.mps._get_default_mps_generator())
    return torch.default_generator, *on_devices


def seed_default_generators(seed: int) -> None:
    """Seed torch's own generators, for runs on made-up values that have to draw the same again.

    `torch.manual_seed` does more: for each kind of device that is not in use it keeps the seed for later, with a text
    of the whole stack, which takes 3 ms.
    """
    for generator in default_generators():
        generator.manual_seed(seed)


@cache
def _has_mps() -> bool:
    return torch.backends.mps.is_available()  # the same for a whole process


def _numpy_state() -> Any:
    return np.random.get_state(legacy=False)


@lru_cache
def _check_layout() -> None:
    """Refuse a version of torch that lays its generator out in another way."""
    seed, memory = 5489, torch.Generator().manual_seed(5489).get_state().numpy()
    is_known = len(memory) == _STATE_BYTES
    if is_known:
        words = memory[_TWISTER].view(np.uint64)
        second = (1812433253 * (seed ^ (seed >> 30)) + 1) % 2**32  # by the definition of mt19937
        came = (*memory[_LEFT].view(np.uint32).tolist(), int(memory[_NEXT].view(np.uint64)[0]), *words[:2].tolist())
        is_known = came == (1, 1, 0, seed, second) and not memory[_TWISTER.stop :].any()
    expected, remedy = "a torch whose CPU generator is mt19937 in its known layout", "install a tested version of torch"
    check.require(is_known, expected, f"torch {torch.__version__}", remedy)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block, and restore them after."""
    state: Any = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])
