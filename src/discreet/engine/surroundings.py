"""What changes the effect of a watched call from outside: modes and settings of the user's, and generators.

A function mode below the watch, or a dispatch mode, can give other results than the call that was proven. Random rows
count as independent of their places, which is true only while nobody knows the numbers: `Private` keys torch's
generators in secret before each batch (core/secret_draws.py). A generator that is seeded in a batch, or one of the
user's, draws known numbers, or numbers that a value of the records has chosen. So the state of a generator is followed
like a tensor: a draw reads it, and makes the next one.
"""

from collections.abc import Sequence
from threading import get_ident
from typing import Any, Final, NoReturn, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from discreet.core.check import refuse, require
from discreet.core.secret_draws import default_generators
from discreet.engine.kernel_settings import QUESTIONS, kernel_settings, slow_settings
from discreet.engine.proof.blame import line_of_the_call, user_line
from discreet.engine.proof.calls.expected import Usual
from discreet.engine.proof.calls.judgement import WatchedCall
from discreet.engine.proof.draws.layouts import UNKNOWN_LAYOUT, Strides, layouts_of, strides_of
from discreet.engine.proof.draws.read_draws import drawn_by, joined
from discreet.engine.proof.draws.shared_draws import shared_draw
from discreet.engine.proof.draws.states import StateDigests
from discreet.engine.proof.forbidden import compiler_at_work, refuse_transformed, transform_at_work
from discreet.engine.proof.lineage import GENERATOR_STATE, MIXED, Origin, PublicRows, ReadDraws
from discreet.engine.proof.program import described
from discreet.engine.trace.mode_stack import code_in

count_function_modes: Final = torch._C._len_torch_function_stack
count_dispatch_modes: Final = torch._C._len_torch_dispatch_stack
seed_of_torch: Final = torch.default_generator.initial_seed
computes_gradients: Final = torch.is_grad_enabled
casts: Final = torch._C._is_any_autocast_enabled
hooks_on_saved_tensors: Final = torch._C._autograd._top_saved_tensors_default_hooks
_SMALLEST = 5e-324


def autocast_in_words() -> str:
    """The types in which autocast computes."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return ", ".join(f"{kind} {torch.get_autocast_dtype(kind)}" for kind in kinds)


@final
class Surroundings:
    """Modes from the first batch on, and the seed of torch's generator in a batch."""

    def __init__(self, own: type[TorchFunctionMode]) -> None:
        self._own = own
        self._below = 0  # how many function modes lie below the watch
        self._thread = 0  # that took the batch
        self._seed = 0
        self._flushes: bool | None = None  # whether numbers below the normal ones count as 0
        self._settings: tuple[Any, ...] = ()  # that choose kernels, at the first batch
        self._slow: tuple[Any, ...] = ()  # others of them
        self.usual: Usual = ()  # around a call that nothing changes, and that `check` has no need to look at

    def check_alone(self) -> None:
        """Before a batch: refuse another run that is in the middle of its own, and would watch this one's calls."""
        below: list[Any] = [torch._C._get_function_stack_at(place) for place in range(count_function_modes())]
        if any(type(mode) is self._own for mode in below):
            refuse(
                "one run at a time between a batch and its step",
                "a batch of one run in the middle of a batch of another",
                "call step for the batch of one run before the other's next batch, such as two loops one after the "
                "other; close() the iterator of a run that is left",
            )

    def open(self) -> tuple[Usual, bool]:
        """A batch is about to be given; the watch is not on yet.

        Returns what is usual around a call, and whether numbers below the normal ones count as 0.
        """
        self._below, self._thread = 0, get_ident()
        if count_function_modes() or count_dispatch_modes():
            self._look()
        if self._flushes is None:
            self._flushes, self._settings, self._slow = _SMALLEST == 0, kernel_settings(), slow_settings()
        self._seed = seed_of_torch()
        self.check()
        self._note_usual()
        return self.usual, self._flushes

    def check_thread(self) -> None:
        """Refuse losses in another thread than the one that took the batch: modes belong to a thread."""
        is_here, remedy = get_ident() == self._thread, "call private.step in the thread that iterates"
        require(is_here, "private.step in the thread that took the batch", "another thread", remedy)

    def check_end(self) -> None:
        """Before the backward pass: refuse other kernels, too, which a record may have chosen."""
        self.check()
        require(
            kernel_settings() == self._settings and slow_settings() == self._slow,
            "the settings by which torch chooses kernels (torch.backends, set_num_threads) as at the first batch",
            "other settings at private.step",
            "set them once, before the loop, or inside a `with` block that ends before private.step",
        )

    def _note_usual(self) -> None:
        self.usual = (
            (count_function_modes, (), self._below),
            (count_dispatch_modes, (), 0),
            (seed_of_torch, (), self._seed),
            (transform_at_work, (), None),
            (compiler_at_work, (), None),
            (computes_gradients, (), True),
            (casts, (), False),
            (hooks_on_saved_tensors, (False,), None),
            *((ask, (), answer) for ask, answer in zip(QUESTIONS, self._settings, strict=True)),
        )

    @property
    def modes(self) -> tuple[str, ...] | None:
        """Modes and settings that change what is computed and that are compared; None if they are the usual ones."""
        settings, slow = kernel_settings(), slow_settings()
        others = () if (settings, slow) == (self._settings, self._slow) else (f"settings {settings} {slow}",)
        if computes_gradients() and not casts() and not others:
            return None
        return f"gradients {computes_gradients()}", autocast_in_words(), *others

    def are_usual(self) -> bool:
        """Inside a watched call: whether nothing is there that changes it, or that `check` would look at."""
        if (_SMALLEST == 0) is not self._flushes:
            return False
        for ask, args, answer in self.usual:  # noqa: SIM110, for speed
            if ask(*args) != answer:
                return False
        return True

    def check(self) -> None:
        """Inside a watched call: refuse unknown modes, and another seed than at the start of the batch."""
        refuse_transformed()
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

    def _look(self) -> None:
        count = count_function_modes()
        below: list[Any] = [torch._C._get_function_stack_at(place) for place in range(count)]
        for mode in (*below, *_get_current_dispatch_mode_stack()):
            kind = type(mode)
            is_torchs = kind is DeviceContext or kind.__module__.startswith("torch.")
            if not (is_torchs or kind is self._own):
                refuse(
                    "torch calls that do what they say, between a batch and its losses",
                    f"{kind.__name__}, a mode of {kind.__module__}, which may change them",
                    "leave the `with` block of the mode out of the training loop",
                )
            code = code_in(mode) if is_torchs and kind is not DeviceContext else None
            if code is not None:
                refuse(
                    "torch calls that do what they say, between a batch and its losses",
                    f"{kind.__name__}, a mode of torch that calls {code}, which sees tensors and may change them",
                    "leave it out of the training loop; for selective checkpoints, pass a list of operators in place "
                    "of a function",
                )
        self._below = count  # once all are known: a loop may go on after a refusal
        self._note_usual()


_BY_VALUES: Final = frozenset([torch.poisson, torch.binomial, torch._standard_gamma, torch._sample_dirichlet])
"""Samplers that move the generator by the values of their arguments: they draw until a number is accepted."""

States = list[tuple[torch.Generator, int]]
_MOST_STATES: Final = 10_000  # whose origins are remembered


@final
class Generators:
    """Where the states of generators come from in one batch: its start, or a draw from another state.

    Guarantee: numbers come from torch's own generators, whose states follow from those at the start of the batch. Two
    draws that reach the losses read one state only if they are the same call on tensors that lie alike in memory, and
    all that reads a draw reads it in one way, so that no rows share numbers but those of one record. What two draws
    made has one origin only if both read one state. So a choice among equal draws, a draw that is left out or repeated,
    and a generator that is set back show as another way to make the losses. A sampler that moves the generator by the
    values of records leads to no draw that the program can have seen before.

    An origin stands for a state in every batch: the start, or what one call on tensors of known origins and layouts
    left of another state. Which state a generator is in is looked at before and after every draw.
    """

    def __init__(self) -> None:
        self._digests = StateDigests()
        self._begins: dict[int, Origin] = {}  # of the states at the start of a batch
        self._left: dict[tuple[Origin, Any, Strides], Origin] = {}  # of states that known calls leave
        self._starts: list[tuple[torch.Generator, Tensor]] = []  # states at the start of a batch without a draw so far
        self._origins: dict[tuple[int, int], Origin] = {}
        self._readers: dict[int, set[int]] = {}  # by the digest of a state: those of the draws from it
        self._results: list[Origin] = []  # losses and gradients of the batch
        self._looks_for_shared = True
        self._shared: Origin | None = None  # a call that gives one draw to several records, in any batch so far
        self._apart = set[Origin]()  # of known calls, which no such call reaches
        self._is_repeated = False  # whether different draws have read one state
        self._has_ways = False  # whether a draw has rows for records along several axes
        self._last: dict[int, int] = {}  # the state that the last draw from a generator left
        self._is_set_back = False  # whether a generator drew from another state, before there were losses

    def open(self, *, looks_for_shared: bool) -> None:
        """A batch starts: generators stand wherever they stand.

        looks_for_shared  whether draws that records share are noted: rehearsals show them, and one record shares none
        """
        self._looks_for_shared = looks_for_shared
        if len(self._left) > _MOST_STATES:
            self._left, self._apart = {}, set()  # calls that draw are judged anew
        self._origins, self._readers, self._results, self._last = {}, {}, [], {}
        self._is_repeated = self._is_set_back = self._has_ways = False
        self._starts = [(generator, generator.get_state()) for generator in default_generators()]

    def before(self, given: Sequence[torch.Generator]) -> States:
        """The states that a call can read: of torch's generators. Those of the user's are refused."""
        if self._starts:
            self._note_starts()
        own = default_generators()
        for generator in given:
            if not any(generator is one for one in own):
                _refuse_own_generator()
        return [(generator, self._digests.of(generator.get_state())) for generator in given or own]

    def _note_starts(self) -> None:
        """The origins of the states at the start of a batch, once a call may draw."""
        for generator, start in self._starts:
            if id(generator) not in self._begins:
                self._begins[id(generator)] = Origin(MIXED, hash(("generator", str(generator.device))))
                self._begins[id(generator)].is_kept = True
            self._origins[id(generator), self._digests.of(start)] = self._begins[id(generator)]
        self._starts = []

    def read(self, before: States, call: WatchedCall) -> tuple[Origin, ...]:
        """The origins of the draws that a call has made: of the states that it left, if generators moved."""
        found = []
        for generator, start in before:
            end = self._digests.of(generator.get_state())
            if end == start:
                continue
            origin = self._origins.get((id(generator), start))
            if origin is None:
                _refuse_seed()
            is_ahead = not self._results  # checkpointed regions draw again afterwards
            self._is_set_back |= is_ahead and start != self._last.get(id(generator), start)
            self._last[id(generator)] = end
            drawn = self._origins[id(generator), end] = self._drawn(origin, call)
            readers = self._readers.setdefault(origin.digest, set())
            readers.add(drawn.digest)
            self._is_repeated |= len(readers) > 1
            found.append(drawn)
        return tuple(found)

    def _drawn(self, state: Origin, call: WatchedCall) -> Origin:
        """The state that a call leaves of another one: one origin for all calls that are made alike.

        The key of a call fixes the sizes of its tensors, so with their strides it fixes their layouts.
        """
        key = state, call.key, strides_of(call.reading.tensors)
        known = self._left.get(key)
        if known is None:
            layouts = layouts_of(call.reading)
            made = hash((state.digest, call.form.digest, layouts)), call.func, (call.description, layouts), (state,)
            known = Origin(MIXED, *made, where=line_of_the_call(), output=GENERATOR_STATE)
            if state.is_kept and call.comes_again:
                known.is_kept, self._left[key] = True, known
        return known

    def rows_of(
        self, draws: tuple[Origin, ...], rows: Sequence[PublicRows | None] | None
    ) -> Sequence[PublicRows | None] | None:
        """The rows of what a call made, with the draws that it has made itself."""
        return rows if not draws or rows is None else [own and drawn_by(own, draws[0]) for own in rows]

    def note(self, draws: tuple[Origin, ...], made: Sequence[Origin]) -> None:
        """A call that drew these numbers, if any, made this."""
        if draws:
            self._has_ways |= any(own.rows is not None and len(own.rows.axes) > 1 for own in made)

    @property
    def shared_at(self) -> str | None:
        """Where one draw goes to several records of a micro-batch, in words; None if it happened in no batch so far."""
        return None if self._shared is None else described(self._shared)

    def check(self, made: Origin) -> None:
        """Refuse losses or gradients that two different draws from one state reach. Others may repeat a state.

        Refuse those that read one draw in two ways, by which records share its numbers.

        Refuse draws behind a sampler that goes by values, too, if a generator was set back: the program may have
        looked ahead, and a record may have chosen the numbers of others.
        """
        if self._looks_for_shared and self._shared is None and made not in self._apart:
            self._shared = shared_draw(made)
            if made.is_kept and self._shared is None:
                self._apart.add(made)
        self._results.append(made)
        if not (self._is_repeated or self._is_set_back or self._has_ways):
            return
        reaching: dict[int, set[int]] = {}
        ahead, seen, used = [*self._results], set[int](), set[ReadDraws]()
        while ahead:
            origin = ahead.pop()
            if id(origin) in seen:
                continue
            seen.add(id(origin))
            ahead += origin.parents
            if origin.rows is not None:
                used.add(origin.rows.used)
            if origin.output == GENERATOR_STATE:
                (state,) = origin.parents
                readers = reaching.setdefault(state.digest, set())
                readers.add(origin.digest)
                if len(readers) > 1 or (self._is_set_back and _goes_by_values(origin)):
                    _refuse_repeated()
        if not joined(used):
            _refuse_two_ways()


def _goes_by_values(drawn: Origin) -> bool:
    """Whether values of the records may decide how far a draw moves the generator."""
    return drawn.func in _BY_VALUES or UNKNOWN_LAYOUT in drawn.settings[1]


def _refuse_seed() -> NoReturn:
    refuse(
        "random numbers that nobody knows, new for every batch",
        f"a generator that was seeded inside the training loop, set to another state or used in a thread, before "
        f"{user_line()}",
        "remove the seed between a batch and private.step, and draw in the thread of the loop: known numbers tell the "
        "places in a batch apart (streams=discreet.Streams.seeded(0) makes all draws of a run repeatable)",
    )


def _refuse_own_generator() -> NoReturn:
    refuse(
        "random numbers of torch's own generators, which are keyed in secret for every batch",
        f"another generator at {user_line()}",
        "leave generator= out: known numbers tell the places in a batch apart (streams=discreet.Streams.seeded(0) "
        "makes all draws of a run repeatable)",
    )


def _refuse_repeated() -> NoReturn:
    refuse(
        "random numbers that no two draws share",
        "losses that two different draws from one state of a generator reach, or draws that the loop can have seen",
        "remove torch.random.fork_rng() and set_rng_state between a batch and private.step: draws that share numbers "
        "tie the numbers of one record to another's",
    )


def _refuse_two_ways() -> NoReturn:
    refuse(
        "random numbers of which each belongs to one record",
        "losses that read one draw in two ways, such as torch.rand(K * N) as view(N, K) and as view(K, N).t()",
        "draw anew for each use, or draw with the record as an axis of its own, such as torch.rand(N, K)",
    )
