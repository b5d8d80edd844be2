from collections.abc import Callable
from typing import Any

class ExpectedCalls:
    is_open: bool
    is_paused: bool
    is_inside: bool
    is_backward: bool
    is_resumed: bool
    flushes: bool
    calls: Any
    table: Any
    usual: tuple[tuple[Callable[..., Any], tuple[Any, ...], Any], ...]
    forward: Callable[[Any, Any, Any], Any] | None
    recorder: Any
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None, /) -> Any: ...

def configure(
    tensor: type, parameter: type, quiet: frozenset[Any], exact: frozenset[type], seen_tensor: type, /
) -> None: ...
