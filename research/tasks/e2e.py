"""E2E (Novikova et al. 2017): facts about restaurants and texts that people wrote about them.

A record is one pair of facts and text. The hidden values of the frozen public blocks are computed once for each record
and kept. They are a function of that record and of public weights: computing them costs no privacy, and they are as
private as the record.

Index legend: T tokens of a text, W width, P places for the facts.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from discreet.data.sources import Parts, Source, obtain, roots
from research.tasks.files import write_npz
from research.tasks.smollm2 import SmolLM2, adapted_past, hidden_after, read_prompt

Texts = dict[str, list[str]]
"""Texts by facts."""

Example = tuple[Tensor, Tensor, Tensor, Tensor]
"""Hidden values [T, W], keys and values of the prompt [block, 2, H, P, D], its mask [P], the next tokens [T]."""

LONGEST: Final = 48
"""Longer texts are cut to this many tokens; 3 % are."""
NOTHING: Final = -100
"""Stands where there is no next token."""

_FILES: Final = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}


def _csv_files(folder: Path) -> Parts | None:
    if not all((folder / name).is_file() for name in _FILES.values()):
        return None
    return {split: (folder / name).read_bytes() for split, name in _FILES.items()}


def _zip_file(folder: Path) -> Parts | None:
    if not (folder / "e2e-dataset.zip").is_file():
        return None
    with zipfile.ZipFile(folder / "e2e-dataset.zip") as held:
        inside = {Path(name).name: name for name in held.namelist()}
        return {split: held.read(inside[name]) for split, name in _FILES.items()}


def _npz_file(folder: Path) -> Parts | None:
    if not (folder / "e2e.npz").is_file():
        return None
    with np.load(folder / "e2e.npz", allow_pickle=False) as held:
        return {split: held[f"{split}_csv"].tobytes() for split in _FILES}


SOURCE: Final = Source(
    name="e2e",
    sha256={
        "train": "f27d48df45815288ab15619d47a79028c300fbb7f42e373668aba0b98c1d57c6",
        "dev": "fc26b78cdb849c80545f513b223d1e051138b43882eeb79e3eb153e689c864f9",
        "test": "edc8db685e39bb9824d5bd70c18b1c9b0412d14b527aa960e2d1c8251ee15ccd",
    },
    readers=(_csv_files, _zip_file, _npz_file),
    folders=("e2e", "."),
    urls={"e2e-dataset.zip": "https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip"},
    files="trainset.csv, devset.csv and testset_w_refs.csv, or e2e-dataset.zip, or e2e.npz",
    ways=("the release v1.0.0 of github.com/tuetschek/e2e-dataset, unpacked into a folder e2e",),
)


def texts(split: str, *, data_dir: str | None = None) -> Texts:
    """All texts of a split ("train", "dev" or "test"), in the order of the file."""
    content = obtain(SOURCE, data_dir=data_dir, download=False)[split]
    found: Texts = {}
    for row in csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")):
        found.setdefault(row["mr"], []).append(row["ref"])
    return found


def some(found: Texts, records: int) -> Texts:
    """The first `records` records of a public permutation: facts ordered by the sha256 of their index in the file."""
    facts = list(found)
    order = sorted(range(len(facts)), key=lambda i: hashlib.sha256(f"e2e:{i}".encode()).digest())
    chosen: Texts = {}
    for i in order:
        left = records - sum(map(len, chosen.values()))
        if left <= 0:
            break
        chosen[facts[i]] = found[facts[i]][:left]
    return chosen


def request(facts: str) -> str:
    """The prompt of the model."""
    return f"Write one or two sentences about this restaurant: {facts}"


# -- hidden values ----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Hidden:
    """Records after the frozen blocks, shortest first; half precision.

    hidden [n, T, W], following [n, T], facts [n]: which row of past [m, block, 2, H, P, D] and prompt [m, P]
    """

    hidden: npt.NDArray[np.float16]
    following: npt.NDArray[np.int64]
    facts: npt.NDArray[np.int64]
    past: npt.NDArray[np.float16]
    prompt: npt.NDArray[np.bool_]

    @staticmethod
    def read(file: Path, split: str) -> Hidden:
        with np.load(file, allow_pickle=False) as held:
            return Hidden(**{name: held[f"{split}_{name}"] for name in Hidden.__dataclass_fields__})


@final
class Examples(Dataset[Example]):
    """Records as inputs of the blocks with adapters."""

    def __init__(self, held: Hidden) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held.hidden)

    def __getitem__(self, record: int) -> Example:
        held, facts = self._held, self._held.facts[record]
        return (
            torch.from_numpy(held.hidden[record]).float(),
            torch.from_numpy(held.past[facts]).float(),
            torch.from_numpy(held.prompt[facts]),
            torch.from_numpy(held.following[record]),
        )


def hidden_values(
    known: Callable[[], SmolLM2],
    *,
    train: int,
    test: int,
    data_dir: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Path:
    """An npz file of records after the frozen blocks; made where there is none, about six records a second, once."""
    file = roots(data_dir)[0] / f"e2e-smollm2-135m-{train}-{test}.npz"
    if file.is_file():
        return file
    chosen = {
        "train": some(texts("train", data_dir=data_dir), train),
        "test": some(texts("test", data_dir=data_dir), test),
    }
    model = known()
    room = max(len(model.prompt(request(facts))) for part in chosen.values() for facts in part) - 1
    arrays: dict[str, npt.NDArray[Any]] = {}
    for split, part in chosen.items():
        values = encoded(model, part, room=room, note=note)
        arrays |= {f"{split}_{name}": getattr(values, name) for name in Hidden.__dataclass_fields__}
    return write_npz(file, arrays)


def encoded(
    known: SmolLM2, chosen: Texts, *, room: int, longest: int = LONGEST, note: Callable[[str], None] | None = None
) -> Hidden:
    """Every text after its facts. Texts about the same facts pass together, which changes only the time."""
    hidden, following, facts, pasts, prompts = [], [], [], [], []
    for place, (about, written) in enumerate(chosen.items()):
        asked = known.prompt(request(about))
        answers = [known.answer(text)[:longest] for text in written]
        inputs = torch.zeros(len(answers), longest, dtype=torch.long)
        after = torch.full_like(inputs, NOTHING)
        for row, answer in enumerate(answers):
            inputs[row, : len(answer)] = torch.tensor([asked[-1], *answer[:-1]])
            after[row, : len(answer)] = torch.tensor(answer)
        prompt = read_prompt(known, asked[:-1])
        pasts.append(adapted_past(known, prompt, room).half())
        prompts.append(torch.arange(room) >= room - len(asked) + 1)
        used = max(map(len, answers))
        values = hidden_after(known, prompt, inputs[:, :used])
        hidden.append(F.pad(values, (0, 0, 0, longest - used)).half())
        following.append(after)
        facts += [place] * len(answers)
        if note is not None and len(facts) // 500 != (len(facts) - len(answers)) // 500:
            note(f"hidden values of {len(facts)} texts")
    after = torch.cat(following)
    order = (after != NOTHING).sum(1).argsort(stable=True)
    return Hidden(
        hidden=torch.cat(hidden)[order].numpy(),
        following=after[order].numpy(),
        facts=np.array(facts)[order.numpy()],
        past=torch.stack(pasts).numpy(),
        prompt=torch.stack(prompts).numpy(),
    )
