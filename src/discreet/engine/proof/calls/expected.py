"""The handler of torch calls that the watch is built on: compiled for calls that come again, or plain Python.

A model makes hundreds of calls, nearly all of which came in the batch before. To look them up takes Python longer than
many of them take: between large products neither its code nor its objects are in the cache. So `_expected.c` does the
same in C: it hands calls on that are not watched, and makes those that are known and expected (`RecordWatch.watched`
says how). Whatever else comes, it gives to `watched`, without having changed anything.

Where the installation found no compiler, every call goes to `watched`. Both give the same; tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from discreet.engine.proof.calls.known_calls import EXACT
from discreet.engine.proof.lineage import SeenTensor
from discreet.engine.proof.watched_functions import QUIET

Usual = tuple[tuple[Callable[..., Any], tuple[Any, ...], Any], ...]
"""Questions about the modes around a call, with their arguments and the usual answers."""


class InterpretedCalls:
    """Hands all calls to `watched`.

    is_open      a batch is watched
    is_paused    calls are the engine's own
    is_inside    in a function that is proven as a whole
    is_backward  in a backward pass that runs code of the user's
    is_resumed   in that code, or in a checkpointed region that runs again
    flushes      whether numbers below the normal ones count as 0
    usual        what is usual around a call (surroundings.py)
    calls        the calls that are known
    table        where the tensors of the batch come from
    forward      how the engine runs calls inside the model; None outside
    recorder     runs those that are known
    """

    is_open = is_paused = is_inside = is_backward = is_resumed = flushes = False
    calls: Any = None
    table: Any = None
    usual: Usual = ()
    forward: Callable[[Any, Any, Any], Any] | None = None
    recorder: Any = None

    def watched(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one call."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls.__torch_function__ = cls.watched  # type: ignore[attr-defined]  # no frame between: `check_caller` counts them


try:
    from discreet.engine.proof.calls._expected import ExpectedCalls as ExpectedCalls
    from discreet.engine.proof.calls._expected import configure

    configure(Tensor, Parameter, QUIET, EXACT, SeenTensor)
except ImportError:  # no compiler
    ExpectedCalls = InterpretedCalls  # type: ignore[assignment, misc]
