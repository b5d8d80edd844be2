"""Parameters, buffers and gradients at one moment, to see whether anything has changed since.

Torch counts the writes to a tensor, but not those through NumPy, through `.data` or through a new tensor in its place.
So contents are compared as well: all of the buffers up to 4 MB, and the ends of everything else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor, nn

from discreet.core.check import refuse
from discreet.engine.model.support import check_dense, modules_in, tensors_of
from discreet.engine.proof.declared import DECLARED
from discreet.engine.proof.lineage import content_of, form_of, version_of
from discreet.engine.shards.local import local_of

MOST_BUFFERS: Final = 4 << 20  # bytes of buffers that are compared in full
_END: Final = 4096  # bytes that are compared at both ends of a larger tensor
_SHOWN: Final = 3  # names in a message
_OTHERS: Final = "which tensors the model holds"


def _declaring(changed: str) -> str:
    """What to do about the first tensor of a message, if it may change. A declared model would hide all others.

    >>> _declaring("layers.0.scale, shift")
    'If the new values do not come from records, write them in place and declare the tensor: \
discreet.public(model.layers[0].scale)'
    """
    parts = changed.partition(",")[0].split(".") if changed != _OTHERS else ["its_name"]
    path = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
    what = "If the new values do not come from records, write them in place and declare the tensor"
    return f"{what}: discreet.public(model{path})"


@dataclass(frozen=True, slots=True)
class _Seen:
    """One tensor as it was. Holding it keeps a new tensor from getting its identity."""

    tensor: Tensor
    version: int
    content: bytes
    form: tuple[Any, ...]  # what else decides about results: type, sizes, strides and the like
    is_whole: bool  # whether `content` is all of it
    memory: _Memory | None  # where the content lies, if it can be read there again

    @classmethod
    def of(cls, tensor: Tensor, *, whole: bool) -> _Seen:
        memory = _Memory.of(tensor, whole)
        content = _copy_of(tensor, whole) if memory is None else memory.read()
        return cls(tensor, version_of(tensor), content, form_of(tensor), whole, memory)

    def has_content_of(self, now: Tensor) -> bool:
        """Whether a tensor has the same form and content, as far as it is known."""
        if self.memory is not None and self.tensor is now and self.memory.is_of(now):
            return self.memory.read() == self.content
        if form_of(now) != self.form:
            return False
        memory = _Memory.of(now, self.is_whole)
        return self.content == (_copy_of(now, self.is_whole) if memory is None else memory.read())


class _Memory(NamedTuple):
    """Memory that holds a dense tensor, in order: where it begins, and how many bytes of it are compared.

    size, stride, dtype  of the tensor: with these and the address it is the same memory in the same order
    """

    address: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    nbytes: int
    is_whole: bool

    @classmethod
    def of(cls, tensor: Tensor, whole: bool) -> _Memory | None:
        """None for a tensor that is elsewhere, in no order, or whose bytes are not its numbers."""
        is_dense = tensor.layout == torch.strided and not tensor.is_meta
        if not is_dense or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            return None
        nbytes = tensor.nbytes
        return cls(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), nbytes, whole or nbytes <= 2 * _END)

    def is_of(self, tensor: Tensor) -> bool:
        """Whether the same tensor is still there."""
        is_there = tensor.data_ptr() == self.address and tensor.dtype is self.dtype
        is_same = is_there and tensor.shape == self.size and tensor.stride() == self.stride
        return is_same and not (tensor.is_conj() or tensor.is_neg())  # `.data` can be set to these views

    def read(self) -> bytes:
        """The bytes, or those at the ends: a copy, and much faster than one through NumPy for small tensors."""
        start, size = self.address, self.nbytes
        if self.is_whole:
            return ctypes.string_at(start, size)
        return ctypes.string_at(start, _END) + ctypes.string_at(start + size - _END, _END)


@final
class Snapshot:
    """Which tensors a model holds, how often they were written to, and what they contain."""

    def __init__(self, model: nn.Module, before: Snapshot | None = None) -> None:
        """`before` is an earlier one: what it has of tensors that are still the same is used again."""
        modules = modules_in(model)
        buffers = {id(buffer) for module in modules for buffer in module._buffers.values()}
        now = [local_of(tensor) for tensor in tensors_of(modules)]
        earlier = before._seen if before is not None and len(before._seen) == len(now) else []
        with torch._C.DisableTorchFunction():
            is_same = untouched(earlier, now) if earlier else [False] * len(now)
        room = MOST_BUFFERS
        self._seen: list[_Seen] = []
        for index, tensor in enumerate(now):
            whole = tensor.nbytes <= 2 * _END
            if not whole and tensor.nbytes <= room and id(tensor) in buffers:
                whole, room = True, room - tensor.nbytes
            reuses = is_same[index] and earlier[index].is_whole == whole
            if not reuses:
                check_dense(tensor, "a tensor of the model")
            self._seen.append(earlier[index] if reuses else _Seen.of(tensor, whole=whole))

    def compare(self, model: nn.Module) -> None:
        """Refuse a model whose buffers or parameters were written to, or replaced, during a forward pass."""
        changed = self._changed(model, _is_untouched)
        if changed is not None:
            refuse(
                "buffers and parameters that stay as they are in the forward pass",
                f"{changed} changed",
                "turn off running statistics and the like: they store private records in the model",
            )

    def compare_between(self, model: nn.Module) -> None:
        """Refuse a model whose buffers or parameters have other contents than when `step` returned."""
        changed = self._changed(model, _is_equal)
        if changed is not None:
            refuse(
                "parameters and buffers as private.step left them",
                f"{changed} changed before the next batch",
                "remove what writes to the model between steps (running statistics, a queue, a second optimizer): "
                f"values of records in it are not paid for. {_declaring(changed)}",
            )

    def compare_frozen(self, model: nn.Module) -> None:
        """Refuse a model in which a buffer or a frozen parameter has another content; trained ones may move."""
        modules = modules_in(model)
        now = [local_of(tensor) for tensor in tensors_of(modules)]
        held = (parameter for module in modules for parameter in module._parameters.values() if parameter is not None)
        trained = {id(local_of(parameter)) for parameter in held if parameter.requires_grad}

        def is_kept(seen: _Seen, tensor: Tensor) -> bool:
            return id(tensor) in trained or _is_equal(seen, tensor)

        with torch._C.DisableTorchFunction():
            if len(now) == len(self._seen):
                is_same = zip(untouched(self._seen, now), self._seen, now, strict=True)
                if all(same or is_kept(seen, tensor) for same, seen, tensor in is_same):
                    return
        changed = self._changed(model, is_kept) or ""
        refuse(
            "an optimizer whose step moves the trained parameters alone",
            f"{changed} changed in it",
            "remove the hook or the code of the optimizer that writes to the model: values of records in it are not "
            f"paid for. {_declaring(changed)}",
        )

    def _changed(self, model: nn.Module, same: Callable[[_Seen, Tensor], bool]) -> str | None:
        """The names of tensors that are not the same; None if all are."""
        now = [local_of(tensor) for tensor in tensors_of(modules_in(model))]
        with torch._C.DisableTorchFunction():  # also inside the watch
            if len(now) == len(self._seen) and (all(untouched(self._seen, now)) or all(map(same, self._seen, now))):
                return None
        before = {id(seen.tensor): seen for seen in self._seen}
        held = dict(zip(map(id, now), self._seen, strict=False)) if len(now) == len(self._seen) else before
        named = (*model.named_parameters(), *model.named_buffers())
        locals_ = [(name, local_of(tensor)) for name, tensor in named]
        names = [name for name, tensor in locals_ if id(tensor) not in held or not same(held[id(tensor)], tensor)]
        return ", ".join(names[:_SHOWN]) or _OTHERS


@final
class Gradients:
    """What `.grad` of some parameters holds at one moment."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._seen: list[tuple[Tensor, _Seen]] = []
        for parameter in parameters:
            assert parameter.grad is not None
            gradient = local_of(parameter.grad)
            self._seen.append((parameter, _Seen.of(gradient, whole=False)))

    def are_untouched(self) -> bool:
        """Whether no gradient was written to, replaced or removed since."""
        now = ((seen, parameter.grad) for parameter, seen in self._seen)
        return all(grad is not None and _is_untouched(seen, local_of(grad)) for seen, grad in now)

    def are_all_of(self, parameters: Sequence[Tensor]) -> bool:
        """Whether no other of these parameters has a gradient."""
        own = {id(parameter) for parameter, _ in self._seen}
        return all(id(parameter) in own or parameter.grad is None for parameter in parameters)

    def clear(self) -> None:
        """Remove them from the parameters."""
        for parameter, _ in self._seen:
            parameter.grad = None


def _is_untouched(seen: _Seen, now: Tensor) -> bool:
    """Whether nothing was written to a tensor, nor to its memory, as far as that is known."""
    return seen.tensor is now and seen.version == version_of(now) and seen.has_content_of(now)


def _each_untouched(seen: list[_Seen], now: list[Tensor]) -> list[bool]:
    return list(map(_is_untouched, seen, now))


try:
    from discreet.engine.model._state import untouched
except ImportError:  # no compiler
    untouched = _each_untouched


def _is_equal(seen: _Seen, now: Tensor) -> bool:
    """Whether the content is the same, as far as it is known; where it is not, nothing may have been written.

    The user may declare with `discreet.public` that what changes does not come from records.
    """
    return _has_content_of(seen, now) or DECLARED.number_of(now) is not None


def _has_content_of(seen: _Seen, now: Tensor) -> bool:
    if not seen.is_whole and not (seen.tensor is now and seen.version == version_of(now)):
        return False
    return seen.has_content_of(now)


def _copy_of(tensor: Tensor, whole: bool) -> bytes:
    """The bytes of a tensor that is not on this machine's own memory in order, or those at its ends."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return b""
    with torch._C.DisableTorchFunction():
        copied = content_of(tensor)
    memory = _Memory.of(copied, whole)
    assert memory is not None
    return memory.read()


@final
class ModelBetweenBatches:
    """Watches parameters and buffers from the end of one `step` to the next batch.

    Guarantee: a batch is given only if parameters and buffers are as the library left them, so that no value of an
    earlier batch has been stored in the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._left: Snapshot | None = None  # None before the first step: the user may load weights

    def remember(self) -> None:
        """Take the model as it is: the library is done with a batch."""
        self._left = Snapshot(self._model, self._left)

    def check(self) -> None:
        """Refuse a model that changed since it was remembered."""
        if self._left is not None:
            self._left.compare_between(self._model)

    def check_frozen(self) -> None:
        """Refuse a model whose buffers or frozen parameters changed, after the optimizer has moved the others."""
        if self._left is not None:
            self._left.compare_frozen(self._model)

    @contextmanager
    def swapped(self, swap: AbstractContextManager[None]) -> Iterator[None]:
        """Run the block inside `swap`, which exchanges parameters and restores them; the block may not write."""
        if self._left is None:
            with swap:
                yield
            return
        self.check()
        is_unchanged = False
        try:
            with swap:
                self.remember()
                try:
                    yield
                finally:
                    self.check()
                    is_unchanged = True
        finally:
            if is_unchanged:  # otherwise the next batch is refused too
                self.remember()
