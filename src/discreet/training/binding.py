"""Checks of a plan against model, optimizer and data, made before anything is trained or released."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from discreet.core import check
from discreet.engine.engine import Engine
from discreet.engine.memory import ENOUGH, micro_batch_for
from discreet.engine.proof.lineage import places_in
from discreet.engine.record_watch import RecordWatch
from discreet.engine.selfcheck import self_check
from discreet.engine.shards.local import to_shards
from discreet.engine.trace.capture import tensors_in
from discreet.stages.plan import Plan
from discreet.stages.unit import SampledUsers
from discreet.training.collate import CollateAlike, check_data_apart, kept
from discreet.training.loader import to_device
from discreet.training.rehearsal import Rehearsals

SELDOM = 6  # standard deviations above its mean, which a Poisson batch exceeds once in 10^9 steps
COLUMNS = 8  # a tuple of more tensors is a dataset of records, not of columns
GIVEN = "the records of Private(rehearsal=...)"  # as the ledger names them
Indices = npt.NDArray[np.int64]


def check_arguments(plan: Plan, data: Any, *, micro_batch: int | None, views: int) -> Any:
    """Refuse arguments of `Private` that no run can use; returns the dataset behind `data`."""
    remedy = "complete a recipe first: recipe.for_budget(epsilon=..., delta=..., records=..., batch=..., epochs=...)"
    check.require(isinstance(plan, Plan), "a Plan", f"a {type(plan).__name__}", remedy)
    plan.certificate()  # refuses a plan that cannot be certified
    # The plan must draw the batches itself, so loaders and iterable datasets are refused.
    own = "or use recipe.using(sampling=discreet.OwnLoader()), or methods.dp_ftrl with FixedOrder, Reshuffled, OnePass"
    expected = "a dataset, from which the plan draws batches"
    remedy = f"pass loader.dataset; {own}, data=None, and iterate private.over(loader)"
    check.require(not isinstance(data, DataLoader), expected, "a DataLoader", remedy)
    remedy = f"implement __len__ and __getitem__; {own} and iterate private.over(batches)"
    check.require(not isinstance(data, IterableDataset), "a map-style dataset", type(data).__name__, remedy)
    if micro_batch is not None:
        check.count("give the largest number of records in memory at once", micro_batch=micro_batch)
    check.count("give the number of augmented copies of each record", views=views)
    data = as_dataset(data)
    if plan.unit.is_record:
        _check_once(data)
    return data


def as_dataset(data: Any) -> Any:
    """The dataset behind `data`: a tuple of tensors such as `(X, y)` has one record for each row; others are kept."""
    _check_no_table(data)
    is_pair = type(data) is tuple and 1 < len(data) <= COLUMNS
    if not is_pair or not any(isinstance(column, (Tensor, np.ndarray)) for column in data):
        return data
    expected, remedy = "(X, y) to hold tensors", "convert each of them with torch.as_tensor"
    for column in data:
        _check_no_table(column)
        check.require(isinstance(column, Tensor), expected, f"a {type(column).__name__}", remedy)
    sizes = {len(column) if column.dim() else 0 for column in data}
    got, remedy = "other numbers of rows", "give each record one row in every tensor"
    check.require(len(sizes) == 1 and 0 not in sizes, "(X, y) with a row for each record", got, remedy)
    return TensorDataset(*data)


def _check_once(data: Any) -> None:
    """Refuse `Subset` and `ConcatDataset` of PyTorch that hold a record several times: each adds a contribution."""
    if type(data) not in (Subset, ConcatDataset):
        return
    expected, got = "every record once in the data", f"a {type(data).__name__} that holds some several times"
    remedy = (
        "give each record once, and views= for augmented copies; or protect its owner, with as many records as it has: "
        "recipe.using(unit=discreet.SampledUsers(per_user=...)), unit=the index of the record behind each place"
    )
    behind: dict[int, list[Indices]] = {}
    _find_behind(data, np.arange(len(data)), behind)
    is_once = all(len(np.unique(found := np.concatenate(parts))) == len(found) for parts in behind.values())
    check.require(is_once, expected, got, remedy)


def _find_behind(data: Any, places: Indices, behind: dict[int, list[Indices]]) -> None:
    """Note, for each dataset behind the data (by its id), which of its records these places are."""
    if places.size and places.min() < 0:
        places = np.where(places < 0, places + len(data), places)
    if type(data) is Subset:
        chosen = _chosen(data)
        _find_behind(data.dataset, chosen[places], behind)
    elif type(data) is ConcatDataset:
        for part, end in zip(data.datasets, data.cumulative_sizes, strict=True):
            first = end - len(part)  # type: ignore[arg-type]
            _find_behind(part, places[(places >= first) & (places < end)] - first, behind)
    else:
        behind.setdefault(id(data), []).append(places)


def _chosen(subset: Subset[Any]) -> Indices:
    """The records of a subset, by their places in its dataset."""
    indices = [index.item() if isinstance(index, (Tensor, np.generic)) else index for index in subset.indices]
    size = len(subset.dataset)  # type: ignore[arg-type]
    odd = [one for one in indices if type(one) is not int or not -size <= one < size]
    expected = f"the indices of a Subset to be whole numbers below the size of its dataset, {size}"
    remedy = "use the places of its records; for other keys, write a dataset whose records are numbered from 0"
    check.require(not odd, expected, f"{len(odd)} others, of type {type(odd[0]).__name__}" if odd else "none", remedy)
    return np.array(indices, dtype=np.int64)


def _check_no_table(data: Any) -> None:
    kind = type(data)
    is_table = kind.__module__.partition(".")[0] in ("pandas", "polars", "pyarrow")
    remedy = "encode the columns by public bounds and categories, then pass TensorDataset(features, labels)"
    check.require(not is_table, "a dataset of tensors", f"a {kind.__name__} of {kind.__module__}", remedy)


def check_public(plan: Plan, data: Any, public: Any) -> None:
    """Refuse a method that learns from public records without them, and public records that are not used."""
    needed = plan.bounder.public_records
    check.require(
        (public is not None) == (needed > 0),
        f"public records for {plan.method}" if needed else f"no public records: {plan.method} does not use any",
        "none" if public is None else f"a {type(public).__name__}",
        "pass public=, a dataset like `data` without a protected record" if needed else "leave public= out",
    )
    if public is None:
        return
    is_map = not isinstance(public, (DataLoader, IterableDataset))
    check.require(is_map, "a map-style dataset of public records", type(public).__name__, "pass the dataset itself")
    check.require(
        public is not data and len(public) > 0,
        "public records that are not the protected ones",
        "the protected dataset" if len(public) else "an empty dataset",
        "pass records that need no protection: nothing is charged for them",
    )


def dry_run(
    engine: Engine,
    data: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
    inputs: Callable[[Any], Any] | None,
    device: torch.device,
) -> tuple[Any, Any] | None:
    """Compare the engine's gradients with autograd, on random inputs with the shape of the data.

    A few records are loaded to check `collate_fn`. Nothing about them is kept but the shape of the first. Returns
    example arguments of the model for two records; None without data.
    """
    if data is None or len(data) == 0:
        return None
    with engine.watch.stock.reading():
        check_data_apart(data, collate_fn)
        engine.watch.stock.note(data[0])
        batch = to_device((collate_fn or CollateAlike())([data[0], data[0]]), device)
        take = inputs or (lambda batch: batch if isinstance(batch, (dict, Tensor)) else (batch[0],))
        arguments = take(batch)
    arguments = (arguments,) if isinstance(arguments, Tensor) else arguments
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (tuple(arguments), {})
    try:
        self_check(engine, args, kwargs, 2)
    except check.Refused:
        raise
    except Exception as error:  # the model's own
        expected = "a model that runs on random inputs of the data's shape"
        remedy = (
            "pass inputs=lambda batch: (arguments of the model,), or a function that returns keyword arguments; "
            "the model must run on any floats and small whole numbers"
        )
        check.refuse(expected, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}", remedy)
    return args, kwargs


def micro_batch_of(
    plan: Plan, given: int | None, engine: Engine, example: tuple[Any, Any] | None, processes: int, views: int
) -> int:
    """The most records in memory at once: as given, or as many as fit, and enough for the records of one user."""
    batch, least = plan.horizon.size.batch / processes, 1
    if isinstance(plan.unit, SampledUsers):
        batch, least = batch * plan.unit.per_user, plan.unit.per_user
    expected, remedy = f"micro_batch >= per_user={least}", "use a smaller per_user: the records of a user stay together"
    check.require(given is None or given >= least, expected, f"micro_batch={given}", remedy)
    return given or max(least, fitting_micro_batch(engine, example, batch, views))


def fitting_micro_batch(engine: Engine, example: tuple[Any, Any] | None, batch: float, views: int) -> int:
    """The number of records in a micro-batch.

    It depends only on the shape of the example, the public batch size and the machine. Without an example it is a
    constant. (With a collate_fn there is no example, because the length of the first record is not public.) A Poisson
    batch rarely exceeds its mean by six standard deviations, so a batch that fits in memory is not split.
    """
    if example is None:
        return ENOUGH
    rows = views * math.ceil(batch + SELDOM * math.sqrt(batch))
    return max(1, micro_batch_for(engine, *example, records=2, batch=rows) // views)


def check_given_again(is_kept: bool) -> None:
    """Refuse a batch that the loop wrote to, where it has to be given again."""
    remedy = "do not write to the batch in place, or declare the choice with discreet.public from the first batch on"
    check.require(is_kept, "a batch as it came, which is given again after rehearsals", "one with other values", remedy)


def refuse_new_choices(declared: Sequence[Any]) -> NoReturn:
    """Refuse choices that never come for rehearsals as they do for a batch: its losses are compared with none."""
    kinds = ", ".join(dict.fromkeys(type(one).__name__ for one in declared))
    check.refuse(
        "choices of discreet.public that come for a batch and for its rehearsals alike",
        f"others each time ({kinds})",
        "choose after private.step returned True, and keep it until step does so again; declare numbers as they are, "
        "and in place of an object that the loop makes (a function, a generator, a time) the condition or the name by "
        "which it is chosen; private.is_rehearsal needs no declaration",
    )


def records_in(batch: Any) -> int:
    """The number of records in a batch: the length of its first tensor."""
    first = next(iter(tensors_in(batch)), None)
    if first is None or first.dim() == 0:
        check.refuse("a batch of tensors", type(batch).__name__, "use tensors with the records along the first axis")
    return int(first.shape[0])


def rehearsals(watch: RecordWatch, sizes: tuple[int, ...], given: Any, device: torch.device) -> Rehearsals:
    """The rehearsals of a run, of these numbers of records; those of `given` are public."""
    watch.rehearse(sizes)
    if given is None:
        return Rehearsals(sizes)
    watch.declarations[GIVEN] = None
    number = next((len(tensor) for tensor, _ in places_in(given, 0) if tensor.dim()), 0)
    check.count("the records of a rehearsal (the rows of its first tensor)", rehearsal=number)
    return Rehearsals(sizes, to_device(kept(given), device), number)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def bare_model(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, with a warning; any other model as it is, in its shards."""
    if not isinstance(model, DistributedDataParallel):
        to_shards(model)
        return model
    told = "discreet trains the module inside DistributedDataParallel and adds up over the processes itself: "
    warnings.warn(f"{told}call private.model(...) in the loop, not the wrapper", stacklevel=3)
    inside: nn.Module = model.module
    return inside


@contextmanager
def not_called(model: nn.Module) -> Iterator[None]:
    """Refuse calls of DistributedDataParallel inside the block: it would wait for gradients that never come."""

    def refuse(module: nn.Module, inputs: object) -> None:
        remedy = "call private.model(...), or the module that you wrapped"
        check.refuse("a call of the module that is trained", "a call of DistributedDataParallel", remedy)

    if not isinstance(model, DistributedDataParallel):
        yield
        return
    hook = model.register_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


def bare_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside one that Accelerate has prepared, whose `step` calls it; any other optimizer as it is."""
    if type(optimizer).__module__ != "accelerate.optimizer":
        return optimizer
    inside: torch.optim.Optimizer = optimizer.optimizer  # type: ignore[attr-defined]
    return inside


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer that does not hold exactly the trainable parameters of the model, or only wraps another."""
    # A wrapper may derive from Optimizer, but its parameter groups are those of the optimizer inside.
    bare = isinstance(optimizer, torch.optim.Optimizer) and "param_groups" in vars(optimizer)
    remedy = "pass the optimizer itself; for one that another library has wrapped, pass optimizer.optimizer"
    check.require(bare, "a torch.optim.Optimizer", f"{type(optimizer).__name__}, which wraps one or is none", remedy)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    expected, got = "an optimizer that holds every trainable parameter", f"none for {', '.join(left_out[:3])}"
    check.require(not left_out, expected, got, "add them to the optimizer, or freeze them with requires_grad_(False)")
    got, remedy = "other parameters", "use a separate optimizer and a separate Private for each model"
    check.require(held <= {id(p) for p in model.parameters()}, "an optimizer of this model's parameters", got, remedy)
    expected, got = "an optimizer that uses one gradient per step", "LBFGS, which evaluates the loss several times"
    remedy = "use SGD, Adam or another first-order optimizer"
    check.require(not isinstance(optimizer, torch.optim.LBFGS), expected, got, remedy)
