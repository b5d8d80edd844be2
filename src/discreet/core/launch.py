"""What torchrun tells a process that it starts, from the environment and without importing torch."""

import os


def processes() -> int:
    """The number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_number() -> int:
    """The rank of this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if processes() > 1 else 0


def starts() -> int:
    """How often torchrun has started the processes before, because one of them ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
