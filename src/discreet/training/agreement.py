"""Before the first step, the processes of a run compare what each of them is about to do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from discreet.core import check
from discreet.core.streams import Streams
from discreet.core.world import World
from discreet.stages.plan import Plan

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LRScheduler

_SHOWN = 3  # differences in a message: the first ones say enough
_MISSING = "absent"


def check_agreement(
    world: World,
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    streams: Streams,
    *,
    views: int,
    average: float | None,
    schedulers: Sequence[LRScheduler],
    resumes: bool,
) -> None:
    """Refuse, in every process, a run whose processes do not agree; the message names what differs and where.

    The noise of the first process covers the sum of all of them, so a process that clips at another norm
    would void the certificate. What is compared is public.
    """
    if world.size == 1:
        return
    mine: dict[str, Any] = {
        "plan digest": plan.digest,
        "plan": plan.to_json(),
        "model": _model(model),
        "optimizer": _optimizer(optimizer, model),
        "randomness": streams.statement,
        "views": views,
        "average": average,
        "schedulers": [type(scheduler).__qualname__ for scheduler in schedulers],
        "resume": resumes,
    }
    everyone = [dict(_leaves("", told)) for told in world.gather(mine)]
    names = dict.fromkeys(itertools.chain.from_iterable(everyone))
    different = [name for name in names if len({told.get(name, _MISSING) for told in everyone}) > 1]
    # A digest says that something differs; the plan's own fields say what.
    named = [name for name in different if name != "plan digest"] or different
    if named:
        shown = "; ".join(f"{name}: {_by_rank(name, everyone)}" for name in named[:_SHOWN])
        more = f"; and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        check.refuse(
            f"the same run in all {world.size} processes",
            shown + more,
            "build plan, model and optimizer from the same settings in every process",
        )


def _by_rank(name: str, everyone: Sequence[Mapping[str, str]]) -> str:
    """Each value, and the ranks that have it."""
    ranks: dict[str, list[str]] = {}
    for rank, told in enumerate(everyone):
        ranks.setdefault(told.get(name, _MISSING), []).append(str(rank))
    return ", ".join(
        f"{value} on rank{'s' * (len(which) > 1)} {' and '.join(which)}" for value, which in ranks.items()
    )


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every value inside a JSON value, by its path: ("plan.bounder.clip", "1.0")."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, item)
    else:
        yield name, json.dumps(value)


def _model(model: nn.Module) -> dict[str, str]:
    """Name, shape and type of each parameter and buffer, and whether it is trained."""
    told = {
        name: f"{_tensor(value)}{'' if value.requires_grad else ', frozen'}"
        for name, value in model.named_parameters()
    }
    return told | {name: f"{_tensor(value)}, buffer" for name, value in model.named_buffers()}


def _optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {
        f"group {number}": {
            **{key: _setting(value) for key, value in group.items() if key != "params"},
            "params": [names.get(id(parameter), "unknown") for parameter in group["params"]],
        }
        for number, group in enumerate(optimizer.param_groups)
    }
    return {"kind": type(optimizer).__qualname__, **groups}


def _tensor(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _setting(value: Any) -> Any:
    """A hyper-parameter as a JSON value; what has no such form is told by its type."""
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, (list, tuple)):
        return [_setting(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__qualname__
