"""Named random streams: a cipher in counter mode, with a key from the operating system.

The cipher is AES-256 on CPUs and ChaCha20 on other devices. A stream uses each cipher block at most once. Privacy
depends on that, so a stream cannot be copied, pickled or used in a forked process, and it never uses the generators of
torch or numpy.

>>> streams = Streams.seeded(5)
>>> streams.statement
'seeded: not private'
>>> streams.noise.normal(3).shape
torch.Size([3])
>>> streams.sampling.bernoulli(4, rate=1.0).tolist()
[True, True, True, True]
"""

import hashlib
import os
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Final, NoReturn, Self, final

import numpy as np
import numpy.typing as npt
import torch

from discreet.core import check, normals
from discreet.core.generators import ahead, on_device, residues
from discreet.core.generators.targets import check_dtype, check_own_cells
from discreet.core.randomness import KEYED, SEEDED

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_KEY_BYTES: Final = 32
_POOL: Final = 1 << 17  # the most normals that a small draw makes in advance
_BULK: Final = _POOL // 2  # draws from this size on go straight to their target, without the pool


def _derive(key: bytes, label: str, *, size: int = _KEY_BYTES) -> bytes:
    return hashlib.blake2b(label.encode(), key=key, digest_size=size, person=b"discreet.streams").digest()


@final
class Stream:
    """A forward-only sequence of random values under one 256-bit key.

    Guarantee: no cipher block is used for two values, in one thread or several. Words and normals use separate counter
    ranges, and both sequences depend only on the key, not on the sizes of the draws: normal(3) then normal(5) are the
    values of normal(8). Normals for another device than the CPU are drawn there, by another cipher under a key of its
    own; each such draw starts at a new block.
    """

    def __init__(self, key: bytes, *, name: str, replayable: bool) -> None:
        remedy = "take streams from discreet.Streams.from_os() or discreet.Streams.seeded(seed)"
        check.require(len(key) == _KEY_BYTES, f"a key of {_KEY_BYTES} bytes", f"{len(key)} bytes", remedy)
        self.name, self._key, self._replayable = name, key, replayable
        self._used: set[int] = set()
        self._process, self._lock = os.getpid(), threading.Lock()
        self._cipher_key = _derive(key, "cipher")
        self._words, self._word_bytes = normals.cipher(self._cipher_key, normals.WORDS), 0
        self._normal_blocks = 0
        self._device_key, self._device_blocks = _derive(key, "device cipher"), 0
        self._pool, self._next = np.empty(0), 0  # normals drawn and not yet handed out
        self._ahead: ahead.NormalsAhead | None = None  # those that follow the pool

    @property
    def spent(self) -> int:
        """The number of cipher blocks drawn so far (two words or normals on the CPU, eight normals on a device)."""
        return -(-self._word_bytes // normals.BLOCK_BYTES) + self._normal_blocks + self._device_blocks

    @property
    def fingerprint(self) -> str:
        """A short hash of the key that is safe to print."""
        return _derive(self._key, "fingerprint", size=8).hex()

    @property
    def public_key(self) -> bytes:
        """The key of a replayable stream, with which anyone draws the same values. It reveals no other key."""
        remedy = f"keep the key of {self.name} secret: privacy depends on it"
        check.require(self._replayable, "a stream whose values are public (mask, projection, init)", self.name, remedy)
        return self._key

    def __repr__(self) -> str:
        return f"Stream(name={self.name!r}, fingerprint={self.fingerprint!r}, spent={self.spent})"

    def at(self, index: int) -> Self:
        """The sub-stream of step, epoch or rank `index`. Its key is a keyed hash of this key and the index.

        Replayable streams (mask, projection, init) give the same sub-stream again; noise and sampling give each index
        once.
        """
        self._guard()
        check.count("number sub-streams from 0", least=0, index=index)
        index = int(index)
        if not self._replayable:
            with self._lock:
                remedy = f"{self.name} is never replayed; take the next index, or draw from {self.name} itself"
                unused = index not in self._used
                check.require(unused, f"a new index for {self.name}.at", f"index={index} again", remedy)
                self._used.add(index)
        key = _derive(self._key, f"at {index}")
        return Stream(key, name=f"{self.name}.at({index})", replayable=self._replayable)

    def again(self, index: int) -> Self:
        """The sub-stream of a draw that a run repeats, such as which records belong together; never for noise.

        It shares no key with `at`.
        """
        self._guard()
        check.count("number sub-streams from 0", least=0, index=index)
        return Stream(_derive(self._key, f"again {int(index)}"), name=f"{self.name}.again({index})", replayable=False)

    @property
    def secret_key(self) -> bytes:
        """The key, for a file that stays private: whoever reads it can remove the noise (training/noise_keys.py)."""
        return self._key

    def normal(
        self, count: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """`count` standard normals: Box-Muller in float64, rounded once to `dtype`."""
        self._guard()
        check.count("say how many normals to draw", least=0, count=count)
        check_dtype(dtype)
        return self.add_normal_(torch.zeros(int(count), dtype=dtype, device=device), 1.0)

    def prepare(self, count: int) -> None:
        """Begin to draw the next `count` normals for the CPU beside other work, if a core is free.

        It changes no value: draws use the sequence in its order, and what no draw has used yet stays for the next one.
        """
        self._guard()
        with self._lock:
            missing = count - (len(self._pool) - self._next)
            if self._ahead is None and ahead.LEAST <= missing <= ahead.MOST and ahead.core_is_free():
                missing += missing % 2
                kept = self._pool if self._next == len(self._pool) else np.empty(0)
                first = self._normal_blocks
                self._normal_blocks += missing // 2  # before the draw: no block serves twice
                memory = ahead.memory_for(missing, kept)
                self._ahead = ahead.NormalsAhead(self._cipher_key, first, memory)

    def add_normal_(self, value: torch.Tensor, std: float) -> torch.Tensor:
        """value += std * N(0, 1) in place, summed in float64 and rounded after adding."""
        self._guard()
        check.not_negative("std is the standard deviation of the noise", std=std)
        check_dtype(value.dtype)
        check_own_cells(value)
        bare = value.detach()
        flat = bare.reshape(-1)  # a view if it can be one, else a copy that goes back below
        with self._lock:
            self._add_where_it_lives(flat, float(std))
        if not bare.is_contiguous():
            bare.copy_(flat.view(bare.shape))
        return value

    def uniform64(self, count: int) -> Words:
        """`count` uniform 64-bit words."""
        self._guard()
        check.count("say how many words to draw", least=0, count=count)
        size = int(count) * normals.WORD_BYTES
        out = np.empty(size + normals.BLOCK_BYTES, dtype=np.uint8)
        with self._lock:
            self._word_bytes += size
            normals.key_stream(self._words, out.data, size)
        return out[:size].view(np.uint64)

    def bernoulli(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        """`count` independent coins, each true with probability exactly `rate`.

        A word w is compared with the integer part of rate * 2^64, where rate is the exact fraction of the float. If
        rate has bits below 2^-64 and w equals that integer, further words decide.
        """
        check.fraction("rate is the probability that a record is included", rate=rate)
        words = self.uniform64(count)
        threshold, rest = divmod(Fraction(rate) * 2**64, 1)
        if threshold == 2**64:
            return np.ones(len(words), dtype=np.bool_)
        included: npt.NDArray[np.bool_] = words < np.uint64(threshold)
        if rest:
            for tie in np.flatnonzero(words == np.uint64(threshold)):
                included[tie] = self._coin(rest)
        return included

    def choice(self, count: int, of: int) -> Indices:
        """`count` of the indices 0 .. of-1 without replacement, sorted; every subset is equally likely."""
        check.count("say how many records there are", of=of)
        check.count("say how many records to take", least=0, count=count)
        count, of = int(count), int(of)
        check.require(count <= of, f"count <= of={of}", f"count={count}", "a record is taken at most once")
        if 2 * count > of:
            left_out = np.ones(of, dtype=np.bool_)
            left_out[self.choice(of - count, of)] = False
            return np.flatnonzero(left_out)
        # Floyd: step `last` adds a uniform index of 0..last, or `last` itself if that one is taken.
        taken: set[int] = set()
        lasts = range(of - count, of)
        for last, index in zip(
            lasts, residues.below(self.uniform64, np.arange(of - count + 1, of + 1)).tolist(), strict=True
        ):
            taken.add(last if index in taken else index)
        return np.array(sorted(taken), dtype=np.int64)

    def subset(self, count: int, of: int) -> npt.NDArray[np.bool_]:
        """Which of `of` units are in a uniform subset of `count`: the smallest of `of` words; ties are drawn again.

        It takes one word per unit. `choice` takes one per chosen unit, but is slower for large subsets.
        """
        if count >= of:
            return np.ones(of, dtype=np.bool_)
        while True:
            words = self.uniform64(of)
            chosen: npt.NDArray[np.bool_] = words < np.partition(words, count)[count]
            if np.count_nonzero(chosen) == count:
                return chosen

    def permutation(self, n: int) -> Indices:
        """A uniform random order of 0 .. n-1: the ranks of n distinct words; a tie redraws them all."""
        check.count("say how many records there are", least=0, n=n)
        while True:
            words = self.uniform64(n)
            order = np.argsort(words)
            ranked = words[order]
            if not (ranked[1:] == ranked[:-1]).any():
                return order

    def integers(self, count: int, below: int) -> Indices:
        """`count` independent whole numbers, each uniform in 0 .. below-1."""
        check.count("say how many numbers to draw", least=0, count=count)
        check.count("numbers are drawn from 0 .. below-1", below=below)
        return residues.below(self.uniform64, np.full(int(count), int(below)))

    def _coin(self, rate: Fraction) -> bool:
        """True with probability exactly `rate`, 64 bits at a time."""
        while rate:
            word = int(self.uniform64(1)[0])
            threshold, rate = divmod(rate * 2**64, 1)
            if word != threshold:
                return word < threshold
        return False

    def _add_where_it_lives(self, flat: torch.Tensor, std: float) -> None:
        kind = flat.device.type
        if kind == "cpu":
            self._add(flat.numpy(), std)
        elif kind in on_device.WITHOUT_DOUBLE:
            copied = flat.cpu()
            self._add(copied.numpy(), std)
            flat.copy_(copied)
        else:
            first = self._device_blocks
            self._device_blocks += on_device.blocks_for(len(flat))  # before the draw: no block serves twice
            on_device.add_(self._device_key, first, flat, std)

    def _add(self, values: normals.Values, std: float) -> None:
        """values += std * the next normals: the rest of the pool, what was drawn ahead, whole pairs, a new pool."""
        done = self._add_from_pool(values, std)
        if self._ahead is not None and done < len(values):
            self._next = len(self._pool)
            self._pool, self._next, self._ahead = self._ahead.wait(), 0, None
            done += self._add_from_pool(values[done:], std)
        if len(values) - done >= _BULK:
            bulk = (len(values) - done) // 2 * 2
            self._add_new(values[done : done + bulk], std)
            done += bulk
        if len(values) > done:
            # As much again as was drawn before: short streams stay cheap, long ones pay few calls.
            size = max(len(values) - done, min(_POOL, 2 * self._normal_blocks))
            self._next = len(self._pool)
            fresh = np.zeros(size + size % 2)
            self._add_new(fresh, 1.0)
            self._pool, self._next = fresh, 0
            self._add_from_pool(values[done:], std)

    def _add_from_pool(self, values: normals.Values, std: float) -> int:
        """Use up the pool, front first. Returns how many values it was for."""
        piece = self._pool[self._next : self._next + len(values)]
        self._next += len(piece)  # before the values are used: an exception may lose some, never repeat one
        if len(piece):
            normals.add_scaled(values[: len(piece)], piece, std)
        return len(piece)

    def _add_new(self, values: normals.Values, std: float) -> None:
        first = self._normal_blocks
        self._normal_blocks += len(values) // 2  # likewise
        normals.add(self._cipher_key, first, values, std)

    def _guard(self) -> None:
        ours, remedy = os.getpid() == self._process, "call discreet.Streams.from_os() in the new process"
        repeats = "a forked process, which would repeat the parent's noise"
        check.require(ours, f"{self.name} to be used in the process that made it", repeats, remedy)

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # what copy, deepcopy and pickle call
        remedy = "a copied position would repeat noise; make new streams with discreet.Streams.from_os()"
        check.refuse("one owner for a random stream", "a copy or a pickle", remedy)


_FACTORY: Final = object()  # the key that lets from_os() and seeded() alone build Streams
_REPLAYABLE: Final = {"noise": False, "sampling": False, "draws": False, "mask": True, "projection": True, "init": True}


@final
class Streams:
    """The named streams of one run. Each key is a keyed hash of the root key and the name.

    from_os()     root key: 256 bits of the operating system; no two instances share a key
    seeded(seed)  root key: a hash of the seed, for tests and repeatable experiments; not private

    Guarantee: the streams of `from_os` are those of one object, which serves one run. It has no copies, and its streams
    cannot be exchanged.
    """

    __slots__ = ("_is_taken", "draws", "init", "is_seeded", "mask", "noise", "projection", "sampling")
    is_seeded: bool
    noise: Stream
    sampling: Stream
    draws: Stream
    mask: Stream
    projection: Stream
    init: Stream
    _is_taken: bool

    def __init__(self, root: bytes, *, is_seeded: bool, key: object = None) -> None:
        expected, got = "streams from discreet.Streams.from_os() or discreet.Streams.seeded(seed)", "a key of your own"
        check.require(key is _FACTORY, expected, got, "call one of them: two runs with one key are not independent")
        self._set(is_seeded=is_seeded, _is_taken=False)
        # What models, losses and transforms draw for records (`draws`) is secret, too (core/secret_draws.py).
        for name, replayable in _REPLAYABLE.items():  # replaying noise or sampling would break the guarantee
            self._set(**{name: Stream(_derive(root, name), name=name, replayable=replayable)})

    @classmethod
    def from_os(cls) -> Self:
        """Streams with a new key from the operating system."""
        return cls(os.urandom(_KEY_BYTES), is_seeded=False, key=_FACTORY)

    @classmethod
    def seeded(cls, seed: int) -> Self:
        """Streams that anyone who knows the seed can repeat."""
        check.count("a seed is a whole number; use discreet.Streams.from_os() for privacy", least=0, seed=seed)
        return cls(_derive(b"seed", str(int(seed))), is_seeded=True, key=_FACTORY)

    @classmethod
    def with_mask(cls, mask: bytes) -> Self:
        """Streams for the mask of another run, of which `mask` is the public key. They serve no run."""
        made = cls.from_os()
        made._set(mask=Stream(mask, name="mask", replayable=True), _is_taken=True)
        return made

    def share(self, same: Callable[[bytes], bytes], *, rank: int, sampling: bool = False) -> None:
        """Make these the streams of one of several processes.

        Masks and projections are drawn alike in all of them. Noise, and what models draw, is not, even if all have the
        same seed.

        same      gives the key of the first process in all of them
        sampling  whether all draw the same batches, too
        """
        self._set(
            mask=Stream(same(self.mask.public_key), name="mask", replayable=True),
            projection=Stream(same(self.projection.public_key), name="projection", replayable=True),
            noise=self.noise.at(rank),
            draws=self.draws.at(rank),
        )
        shared = same(self.sampling.secret_key) if sampling else None
        own = self.sampling.at(rank) if shared is None else Stream(shared, name="sampling", replayable=False)
        self._set(sampling=own)

    def check_unused(self) -> None:
        """Refuse streams of another run: both would have the same masks and projections at the same step.

        Certificates of several runs are composed as those of independent ones.
        """
        remedy = "make new streams for each run, also for a resumed one: discreet.Streams.from_os()"
        check.require(not self._is_taken, "streams of one run", "streams that another run has used", remedy)

    def take(self) -> None:
        """A run uses these streams from here on."""
        self.check_unused()
        self._set(_is_taken=True)

    @property
    def statement(self) -> str:
        """The source of the key, as the privacy statement says it."""
        return SEEDED if self.is_seeded else KEYED

    def __repr__(self) -> str:
        return f"Streams({self.statement})"

    def __setattr__(self, name: str, _: object) -> NoReturn:
        check.refuse("unchanged Streams", f"a new value for {name}", "make new ones with discreet.Streams.from_os()")

    def __reduce_ex__(self, protocol: object) -> NoReturn:  # what copy, deepcopy and pickle call
        remedy = "two runs would draw the same masks and projections; call discreet.Streams.from_os() for each"
        check.refuse("one owner for the streams of a run", "a copy or a pickle", remedy)

    def _set(self, **fields: Stream | bool) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)
