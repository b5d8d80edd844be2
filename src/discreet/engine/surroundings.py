"""What changes the effect of a watched call from outside: modes and settings of the user's, and generators.

A function mode below the watch, or a dispatch mode, can give other results than the call that was proven. A generator
that is seeded in the loop draws the same numbers in every step, which tells places in the batch apart, or numbers that
a value of the records has chosen. So the state of a generator is followed like a tensor: a draw reads it, and makes
the next one.
"""

from collections.abc import Sequence
from types import CodeType
from typing import Any, Final, NoReturn, final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from discreet.core.check import refuse
from discreet.engine.proof.blame import user_line
from discreet.engine.proof.lineage import GENERATOR_STATE, MIXED, Origin

count_function_modes: Final = torch._C._len_torch_function_stack
count_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
seed_of_torch: Final = torch.default_generator.initial_seed
_MOST_STATES: Final = 100_000
_SMALLEST = 5e-324


@final
class Surroundings:
    """Modes and generators, from the first batch on."""

    def __init__(self, own: type[TorchFunctionMode]) -> None:
        self._own = own
        self._below = 0  # how many function modes lie below the watch
        self._seed: int | None = None
        self._flushes = False  # whether numbers below the normal ones count as 0
        self._start = 0  # where torch's generator stood when the batch was given
        self._used: dict[int, None] = {}  # where generators stood when numbers were drawn

    def open(self) -> None:
        """A batch is about to be given; the watch is not on yet."""
        self._look()
        if self._seed is None:
            self._seed, self._flushes = seed_of_torch(), _SMALLEST == 0
        self.check()
        self._start = _state(torch.default_generator)

    def check(self) -> None:
        """Inside a watched call: refuse unknown modes, and another seed than before."""
        if count_function_modes() != self._below or count_dispatch_modes():
            self._look()
        if seed_of_torch() != self._seed:
            _refuse_seed()
        if (_SMALLEST == 0) is not self._flushes:
            refuse(
                "one way to compute with the smallest numbers, from the first batch on",
                f"torch.set_flush_denormal inside the training loop, before {user_line()}",
                "call it once, before the loop",
            )

    def close(self) -> None:
        """The losses were made: refuse numbers that were drawn before."""
        self.check()
        end = _state(torch.default_generator)
        if end != self._start:
            self.draw(self._start)
            self.draw(end - 1)  # apart from the start of the next batch, which may stand where this one ended

    def draw(self, state: int | torch.Generator) -> None:
        """Numbers are drawn from a generator that stands here."""
        state = _state(state) if isinstance(state, torch.Generator) else state
        if state in self._used:
            _refuse_seed()
        self._used[state] = None
        if len(self._used) > _MOST_STATES:
            del self._used[next(iter(self._used))]

    def _look(self) -> None:
        self._below = count_function_modes()
        below: list[Any] = [torch._C._get_function_stack_at(place) for place in range(self._below)]
        for mode in (*below, *_get_current_dispatch_mode_stack()):
            kind = type(mode)
            is_torchs = kind is DeviceContext or kind.__module__.startswith("torch.")
            if not (is_torchs or kind is self._own):
                refuse(
                    "torch calls that do what they say, between a batch and its losses",
                    f"{kind.__name__}, a mode of {kind.__module__}, which may change them",
                    "leave the `with` block of the mode out of the training loop",
                )


States = list[tuple[torch.Generator, int]]


@final
class Generators:
    """Where the states of generators come from in one batch: its start, or a draw from another state.

    Guarantee: what two draws made has one origin only if both read one state. So a choice among equal draws, a draw
    that is left out or repeated, and a generator that is set back show as another way to make the losses.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._given: dict[int, torch.Generator] = {}  # those of the user's, alive as long as their names
        self._origins: dict[tuple[int, int], Origin] = {}

    def open(self) -> None:
        """A batch starts: generators stand wherever they stand."""
        self._origins = {}
        for generator in _defaults():
            self._begin(generator, str(generator.device))
        for generator in self._given.values():
            self._begin(generator, self._names[id(generator)])

    def before(self, given: Sequence[torch.Generator]) -> States:
        """The states that a call can read: of the generators that it was given, or of torch's own."""
        for generator in given:
            if id(generator) not in self._names:
                self._given[id(generator)] = generator
                self._begin(generator, f"generator {len(self._given)}")
        return [(generator, _state(generator)) for generator in given or _defaults()]

    def read(
        self, before: States, digest: int, func: Any, settings: Any, where: tuple[CodeType, int]
    ) -> tuple[Origin, ...]:
        """The origins of the states that a call has read: of those generators that moved.

        digest, func, settings, where  the call
        """
        found = []
        for generator, start in before:
            end = _state(generator)
            if end == start:
                continue
            origin = self._origins.get((id(generator), start))
            if origin is None:
                _refuse_seed()
            found.append(origin)
            made = hash((origin.digest, digest)), 0, func, settings, (origin,), None, where
            self._origins.setdefault((id(generator), end), Origin(MIXED, *made, output=GENERATOR_STATE))
        return tuple(found)

    def _begin(self, generator: torch.Generator, name: str) -> None:
        self._names[id(generator)] = name
        self._origins[id(generator), _state(generator)] = Origin(MIXED, hash(("generator", name)))


def _defaults() -> tuple[torch.Generator, ...]:
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return torch.default_generator, *on_devices


def _state(generator: torch.Generator) -> int:
    return hash(generator.get_state().numpy().tobytes())


def _refuse_seed() -> NoReturn:
    refuse(
        "random numbers that are new in every step",
        f"a generator that was seeded inside the training loop, set to another state or used in a thread, before "
        f"{user_line()}",
        "seed torch once, before the loop, and draw in the thread of the loop: numbers that come again tell the places "
        "in a batch apart",
    )
