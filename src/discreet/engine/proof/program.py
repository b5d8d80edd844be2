"""Whether two steps made their losses by the same calls, with the same numbers.

A value of a record that was read (`item`, `numpy`, a branch, a log) can come back as a number in a call, or as the
choice between two calls; neither can be seen. So once something was read, the calls that lead to the losses must be
calls that led to losses before, with the same numbers, up to sizes that follow the number of records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import torch

from discreet.core.check import refuse, require
from discreet.engine.proof.lineage import PUBLIC, Origin
from discreet.engine.trace.capture import name_of


@final
@dataclass
class Comparison:
    """Two programs side by side: numbers that differ, and the first call that does."""

    sizes: tuple[int, int]
    numbers: list[tuple[float, float]] = field(default_factory=list)
    call: str = ""
    _compared: set[tuple[int, int]] = field(default_factory=set)

    def same(self, first: Origin, second: Origin) -> bool:
        """Whether both were made alike, but for the numbers that are collected."""
        ahead = [(first, second)]
        while ahead:
            one, other = ahead.pop()
            pair = id(one), id(other)
            if one is other or pair in self._compared:
                continue
            self._compared.add(pair)
            if one.func is None and one.digest == other.digest:
                continue
            if _sums_up_the_batch(one) and _sums_up_the_batch(other):
                self.numbers.append(tuple(map(float, self.sizes)))  # type: ignore[arg-type]
            if one.func != other.func or len(one.parents) != len(other.parents):
                self.call = "another value" if other.func is None else name_of(other.func)
                return False
            if not self._alike(one.settings, other.settings):
                self.call = name_of(other.func) if other.func is not None else ""
                return False
            ahead += zip(one.parents, other.parents, strict=True)
        return True

    def _alike(self, one: Any, other: Any) -> bool:
        if one == other:
            return True
        if _is_form(one) and _is_form(other):
            return True  # sizes of tensors follow from the calls that made them
        if _is_size(one) and _is_size(other):
            pairs = [(k, n) for k in self._sizes(one, 0) for n in self._sizes(other, 1)]
            if any(a == b for a, b in pairs) or self._linear(one, other):
                return True
            self.numbers.append((self._sizes(one, 0)[0], self._sizes(other, 1)[0]))
            return True
        if _is_float(one) and _is_float(other):
            self.numbers.append((float(one[1]), float(other[1])))
            return True
        if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
            found = [self._alike(a, b) for a, b in zip(one, other, strict=True)]  # all numbers that differ
            return all(found)
        return False

    def _sizes(self, size: Any, which: int) -> list[int]:
        """What a size may have meant: a number, or so many times the number of records."""
        return [size] if isinstance(size, int) else [size[1] * self.sizes[which]]

    def _linear(self, one: Any, other: Any) -> bool:
        """Both the same multiple of the number of records, which one of them does not show."""
        if isinstance(one, int) and isinstance(other, int):
            return False
        return self._sizes(one, 0)[0] * self.sizes[1] == self._sizes(other, 1)[0] * self.sizes[0]

    def follows_the_batch(self) -> bool:
        """Whether a number is proportional, or inversely so, to the number of records."""
        first, second = self.sizes
        return any(
            first != second
            and (math.isclose(a * first, b * second, rel_tol=1e-6) or math.isclose(a * second, b * first, rel_tol=1e-6))
            for a, b in self.numbers
            if a and b and math.isfinite(a) and math.isfinite(b)
        )


def _sums_up_the_batch(origin: Origin) -> bool:
    """Whether public entries, one per record, were reduced: torch.ones(len(x)).sum() is the size of the batch."""
    if origin.lineage is not PUBLIC or origin.form is None or _grows(origin.form):
        return False
    return any(parent.lineage is PUBLIC and _grows(parent.form) for parent in origin.parents)


def _grows(form: Any) -> bool:
    return form is not None and any(isinstance(size, tuple) for size in form[1])


def _is_form(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) > 1 and isinstance(part[0], torch.dtype)


def _is_size(part: Any) -> bool:
    return type(part) is int or (isinstance(part, tuple) and len(part) == 2 and part[0] == "records")


def _is_float(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and part[0] == "float" and isinstance(part[1], float)


@final
class KnownPrograms:
    """The ways in which losses were made so far."""

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._programs: list[tuple[Origin, int]] = []
        self._declared: set[tuple[Any, ...]] = set()
        self._sizes: dict[int, set[int]] = {}

    def check(self, losses: Origin, records: int, read: tuple[int, str] | None, declared: tuple[Any, ...]) -> None:
        """Refuse losses made in another way than before, if a value of the records was read before they were made.

        read      when and where a value of the records was first read
        declared  choices of this step that the user declared public
        """
        if losses.digest in self._digests and not self._is_new_size(losses.digest, records):
            return
        differing: Comparison | None = None
        for program, size in self._programs:
            comparison = Comparison((size, records))
            if comparison.same(program, losses):
                require(
                    not comparison.follows_the_batch(),
                    "losses that do not know how many records were drawn",
                    "a number that follows the size of the batch; steps before this one are not covered by their "
                    "certificate",
                    "leave the division out: sums are divided by the public `batch`",
                )
                if not comparison.numbers:
                    self._digests.add(losses.digest)
                    return
            differing = differing or comparison
        if losses.digest in self._digests:
            return
        if read is not None and read[0] < losses.clock and not (declared and declared not in self._declared):
            self._refuse(read[1], differing)
        self._digests.add(losses.digest)
        self._is_new_size(losses.digest, records)
        self._declared.add(declared)
        if len(self._programs) < 20:
            self._programs.append((losses, records))

    def _is_new_size(self, digest: int, records: int) -> bool:
        """Whether losses made this way are seen for their second number of records, which shows what follows it."""
        sizes = self._sizes.setdefault(digest, set())
        if len(sizes) > 1 or records in sizes or records < 2:
            return False
        sizes.add(records)
        return len(sizes) == 2

    def _refuse(self, where: str, differing: Comparison | None) -> None:
        if differing is None:
            refuse(
                "losses that are made before a value of the records is read: what is read may decide what comes after",
                f"a value that was read at {where}, and calls on the way to the losses after it",
                "read it after private.step(losses), or after the last call that makes the losses",
            )
        came = (
            f"the number {differing.numbers[0][1]:.6g} where it was {differing.numbers[0][0]:.6g}"
            if differing.numbers
            else f"another call ({differing.call})"
        )
        refuse(
            "losses that are made by the same calls with the same numbers in every step, since values of the records "
            f"were read ({where})",
            came,
            "if what changes does not come from the records, write discreet.public(value) around the number or the "
            "condition; else do not use it",
        )
