"""The public records of a run, for methods that learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from discreet.core import check
from discreet.data import Task, load

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

    from discreet.runs.config import RunConfig
    from discreet.stages.plan import Plan


def check_public_records(config: RunConfig, plan: Plan) -> None:
    """Refuse a run without the public records that its method needs, or with others that it does not use."""
    needed, named = plan.bounder.public_records > 0, config.public_records
    check.require(
        needed == (named is not None),
        f"public records for {config.method}" if needed else f"no public records: {config.method} does not use any",
        "none" if named is None else named,
        "name a dataset that needs no protection: public_records=, --public-records" if needed else "leave them out",
    )
    own = named is not None and named.endswith(".npz") and config.data.endswith(".npz")
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
    if config.public_records is None:
        return None
    is_file = config.public_records.endswith(".npz")
    public = load(
        config.public_records,
        data_dir=config.data_dir,
        download=config.download,
        classes=task.classes if is_file else None,
        public=is_file,
    )
    check.require(
        public.shape == task.shape and public.classes <= task.classes,
        f"public records of shape {task.shape}, with labels 0 to {task.classes - 1}",
        f"shape {public.shape}, {public.classes} classes",
        "store them like the protected records, for example with numpy.savez",
    )
    return public.train
