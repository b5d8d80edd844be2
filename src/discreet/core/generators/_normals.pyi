import numpy as np
import numpy.typing as npt

def add(
    key: bytes,
    lane: int,
    first: int,
    array: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    std: float,
    threads: int,
    /,
) -> None: ...
def transform(words: npt.NDArray[np.int64], normals: npt.NDArray[np.float64], /) -> None: ...
def use_width(bytes: int, /) -> int: ...
