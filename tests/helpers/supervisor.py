"""Does what torchrun does, and kills: it starts all processes, and when one ends it ends the others and starts again.

Everything is imported once, and processes are forked, so that a kill costs little time.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from discreet.core.errors import ProcessLost, RunStopped

LOST = 75  # exit code of a process that has lost another


def charges(ledger: Path) -> int:
    """The number of charges in a ledger."""
    return ledger.read_bytes().count(b"\n") - 1 if ledger.exists() else 0


def supervise(
    train: Callable[[int], None], ledger: Path, *, steps: int, ranks: int, kills: int, chance: random.Random
) -> None:
    """Run `train(rank)` in all processes, kill or stop one of them `kills` times, and let the last start end."""
    for start in range(kills + 1):
        port = _free_port()
        children = [_fork(train, rank, ranks, start, port) for rank in range(ranks)]
        if start == kills:
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            assert codes == [0] * ranks, codes
            return
        victim = children.pop(chance.randrange(ranks))
        stalls = start % 7 == 5
        if start % 4 == 3 and not stalls:  # at any moment, from the fork on
            time.sleep(chance.random() * 1.0)
        else:  # while they train: after some more charges, and a little later
            before, left = charges(ledger), steps - charges(ledger)
            wanted = before + chance.randint(1, max(1, 2 * left // (kills + 1 - start) - 2))
            while charges(ledger) < min(wanted, steps - 2):
                assert os.waitpid(victim, os.WNOHANG) == (0, 0), "a process ended by itself"
                time.sleep(0.002)
            time.sleep(chance.random() * 0.01)
        os.kill(victim, signal.SIGSTOP if stalls else signal.SIGKILL)
        for child in children:
            if not (stalls or start % 4 == 1):  # torchrun ends them; otherwise they find out by themselves
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code in ((LOST,) if stalls or start % 4 == 1 else (-signal.SIGKILL, LOST)), code
        if stalls:
            os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


def _fork(train: Callable[[int], None], rank: int, ranks: int, start: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(start),
        "GLOO_SOCKET_IFNAME": "lo",
        "DISCREET_TIMEOUT": "2" if start % 7 == 5 else "20",  # in the first case a process will stall
    }
    try:
        train(rank)
        os._exit(0)
    except (ProcessLost, RunStopped) as error:
        is_lost = isinstance(error, ProcessLost) or isinstance(error.__cause__, ProcessLost)
        os._exit(LOST if is_lost else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
