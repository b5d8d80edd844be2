"""The scripts that an engine has learned, one for each form of input."""

import inspect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from discreet.core.check import refuse
from discreet.core.peak_memory import give_back
from discreet.engine.layout import Layout
from discreet.engine.model.support import modules_in, settings_of
from discreet.engine.proof.probe import PROBE_SEED, Probe
from discreet.engine.selfcheck import verify
from discreet.engine.trace.capture import ForwardTrace, Tracked, tensors_in

_MOST_GUESSES = 4  # constants among the inputs of a single record, tried one by one


class KnownTraces:
    """Learns what a forward pass does, verifies it, and remembers it."""

    def __init__(self, model: nn.Module, roots: Sequence[Tracked], layout: Layout) -> None:
        self._model, self._roots, self._layout = model, roots, layout
        self._known: dict[Any, ForwardTrace] = {}
        self._named: dict[Any, ForwardTrace] = {}  # by the names of what forward() takes
        self._batched: dict[Any, tuple[bool, ...]] = {}  # by the structure of the inputs
        self.busy = False

    @property
    def learned(self) -> int:
        return len(self._known)

    def known(self, args: Any, kwargs: Any, records: int, views: int) -> ForwardTrace | None:
        """The script for these inputs, if inputs like these were met before."""
        tensors, structure = tensors_in((args, kwargs)), _structure((args, kwargs))
        batched = next(self._guesses(structure, tensors, records, views))
        found = self._known.get(self._key(structure, tensors, batched, views))
        if found is not None and records > 1:
            self._batched[structure] = batched
        return found

    def _key(self, structure: Any, tensors: Sequence[Tensor], batched: tuple[bool, ...], views: int) -> Any:
        return structure, batched, _shapes(tensors, batched), views, _mode(self._model, self._roots)

    def find(self, args: Any, kwargs: Any, records: int, views: int) -> ForwardTrace:
        """The script for these inputs; the first time, learned on random ones of the same shape."""
        inputs = (args, kwargs)
        tensors = tensors_in(inputs)
        structure = _structure(inputs)
        first_error: Exception | None = None
        for batched in self._guesses(structure, tensors, records, views):
            key = self._key(structure, tensors, batched, views)
            try:
                if key not in self._known:
                    self._known[key] = self._learn_once(inputs, batched, views)
            except Exception as error:
                first_error = first_error or error
                continue
            if records > 1:
                self._batched[structure] = batched
            return self._known[key]
        assert first_error is not None
        raise first_error

    def _guesses(
        self, structure: Any, tensors: Sequence[Tensor], records: int, views: int
    ) -> Iterator[tuple[bool, ...]]:
        """Which inputs have one row per record: by their size, and by what was seen of them before.

        With one record every row is its own, so that nothing can be mixed by taking a tensor for a constant.
        """
        rows = records * views
        sized = [tensor.dim() > 0 and tensor.shape[0] == rows for tensor in tensors]
        before = self._batched.get(structure)
        if before is not None:
            wrong = [i for i, (was, fits) in enumerate(zip(before, sized, strict=True)) if was and not fits]
            if wrong:
                refuse(
                    f"{rows} rows, one per record, in input {wrong[0]} as in earlier passes",
                    f"shape {list(tensors[wrong[0]].shape)}",
                    "call the model on the whole batch that the iterator gave, else under torch.no_grad()",
                )
            yield before
            return
        if not any(sized):
            refuse(
                f"an input tensor whose first axis is the record, of {rows} rows",
                f"shapes {[list(tensor.shape) for tensor in tensors]}",
                "pass the batch as it came, in tuples, lists or dictionaries; transpose inside the model",
            )
        yield tuple(sized)
        unsure = [i for i, fits in enumerate(sized) if fits]
        if records == 1 and 1 < len(unsure) <= _MOST_GUESSES:
            for size in range(1, len(unsure)):
                for constant in itertools.combinations(unsure, size):
                    yield tuple(fits and i not in constant for i, fits in enumerate(sized))

    def _learn_once(self, inputs: Any, batched: tuple[bool, ...], views: int) -> ForwardTrace:
        """The same script serves `model(x)` and `model(input_ids=x)`: forward() cannot tell them apart."""
        order = _order_by_name(self._model, inputs)
        if order is None:
            return self._learn(inputs, batched, views)
        form, places = order
        tensors = tensors_in(inputs)
        key = self._key(form, [tensors[i] for i in places], tuple(batched[i] for i in places), views)
        if key not in self._named:
            self._named[key] = self._learn(inputs, batched, views)
        return replace(self._named[key], batched=batched)

    def _learn(self, inputs: Any, batched: tuple[bool, ...], views: int) -> ForwardTrace:
        self.busy = True
        try:
            with _nothing_hidden(self._roots):
                script, small = Probe(self._model, self._roots, inputs, batched, views).learn()
                verify(self._model, self._roots, self._layout, script, small)
            return script
        finally:
            self.busy = False
            give_back()


@contextmanager
def _nothing_hidden(roots: Sequence[Tracked]) -> Iterator[None]:
    """Zeros hide what they multiply: parameters that are all zero have random values inside the block.

    Their own tensors come back untouched, so that nothing which was recorded before is changed.
    """
    zeros = [root.tensor for root in roots if not bool(root.tensor.detach().any())]
    own = [parameter.data for parameter in zeros]
    generator = torch.Generator().manual_seed(PROBE_SEED)
    try:
        for parameter in zeros:
            parameter.data = (0.1 * torch.randn(parameter.shape, generator=generator)).to(parameter.data)
        yield
    finally:
        for parameter, values in zip(zeros, own, strict=True):
            parameter.data = values


def _mode(model: nn.Module, roots: Sequence[Tracked]) -> Any:
    device = roots[0].tensor.device.type
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    modules = tuple(modules_in(model))  # themselves: one that replaces another is another, wherever it lies
    return modules, settings_of(modules), autocast


def _order_by_name(model: nn.Module, inputs: Any) -> tuple[Any, list[int]] | None:
    """The form of the inputs by the names of what forward() takes, and where its tensors lie among the inputs.

    None where these do not say which tensor is which.
    """
    args, kwargs = inputs
    places = {id(tensor): i for i, tensor in enumerate(tensors_in(inputs))}
    try:
        named = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    order = [places.get(id(tensor), -1) for tensor in tensors_in(named)]
    return (_structure(named), order) if sorted(order) == list(range(len(tensors_in(inputs)))) else None


def _structure(tree: Any) -> Any:
    """The form of the inputs without the sizes of their tensors; plain values may steer the control flow."""
    if isinstance(tree, Tensor):
        return tree.dim(), tree.dtype
    if isinstance(tree, (tuple, list)):
        return type(tree).__name__, tuple(_structure(branch) for branch in tree)
    if isinstance(tree, dict):
        return "dict", tuple((key, _structure(branch)) for key, branch in tree.items())
    if tree is None or isinstance(tree, (bool, int, str)):
        return tree
    return type(tree).__name__


def _shapes(tensors: Sequence[Tensor], batched: Sequence[bool]) -> Any:
    return tuple(tuple(tensor.shape[1:] if own else tensor.shape) for tensor, own in zip(tensors, batched, strict=True))
