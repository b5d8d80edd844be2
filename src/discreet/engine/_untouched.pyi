from typing import Any

from torch import Tensor

def untouched(seen: list[Any], now: list[Tensor], /) -> list[bool]: ...
