"""The public records of a run, for methods that learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from discreet.core import check
from discreet.core.own_files import is_own
from discreet.data import Task, load
from discreet.data.features import needs_public

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from discreet.runs.comparison.compare import CompareSettings
    from discreet.runs.config import RunConfig
    from discreet.stages.plan import Plan


def check_public_records(config: RunConfig, plan: Plan) -> None:
    """Refuse a run without the public records that its method needs, or with others that it does not use."""
    needed = plan.bounder.public_records > 0 or needs_public(config.features or ())
    named = config.public_records
    check.require(
        needed == (named is not None),
        f"public records for {_user(config)}" if needed else f"no public records: {_user(config)} does not use any",
        "none" if named is None else named,
        "name a dataset that needs no protection: public_records=, --public-records" if needed else "leave them out",
    )
    own = named is not None and is_own(named) and is_own(config.data)
    same = named == config.data or (own and Path(str(named)).resolve() == Path(config.data).resolve())
    check.require(
        not same,
        "public records that are not the protected ones",
        f"{named} for both",
        "name other records: nothing is charged for public ones",
    )


def load_public(config: RunConfig, plan: Plan, task: Task) -> TensorDataset | None:
    """The training records of the dataset that `public_records` names; None if the method needs none."""
    check_public_records(config, plan)
    if plan.bounder.public_records == 0:
        return None
    public = load_named(config.public_records, config, task)
    check.require(
        public.shape == task.shape and public.classes <= task.classes,
        f"public records of shape {task.shape}, with labels 0 to {task.classes - 1}",
        f"shape {public.shape}, {public.classes} classes",
        "store them like the protected records, for example with numpy.savez",
    )
    return public.train


def load_named(name: str | None, settings: RunConfig | CompareSettings, task: Task) -> Task:
    """A dataset that needs no protection, by its name or its npz file."""
    if name is None:
        check.refuse(
            "public records", "none", "name a dataset that needs no protection: public_records=, --public-records"
        )
    is_file = name.endswith(".npz")
    return load(
        name,
        data_dir=settings.data_dir,
        download=settings.download,
        classes=task.classes if is_file else None,
        public=is_file,
    )


def _user(config: RunConfig) -> str:
    """What would use public records."""
    return " and ".join([config.method, *(config.features or ())])
