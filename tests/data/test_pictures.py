"""Folders of pictures: each picture by itself, classes and size by public choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runner import refused, run
from PIL import Image

from discreet.core.check import Refused
from discreet.data import load
from discreet.data.pictures import packed, unlabelled

CLASSES = ("cat", "dog")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty pictures of two classes, of different sizes, kinds and colours."""
    rng = np.random.default_rng(0)
    for place in range(20):
        folder = tmp_path / "photos" / CLASSES[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20 + place, 30, 3), dtype=np.uint8)
        kind = ("RGB", "L", "RGBA", "P")[place % 4]
        Image.fromarray(pixels).convert(kind).save(folder / f"{place:02}.png")
    (tmp_path / "photos" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path / "photos"


def test_pictures_become_bytes_with_the_channel_first(photos: Path) -> None:
    found = packed(photos, CLASSES, size=16, hold_out=0.5)
    assert found["x_train"].dtype == np.uint8
    assert found["x_train"].shape[1:] == (3, 16, 16)
    assert len(found["x_train"]) + len(found["x_test"]) == 20
    assert len(found["x_test"]) > 0
    assert set(found["y_train"]) == {0, 1}
    assert packed(photos, CLASSES, size=8, grey=True, test=photos)["x_test"].shape == (20, 1, 8, 8)


def test_a_square_picture_of_the_size_keeps_its_pixels(tmp_path: Path) -> None:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (unlabelled(tmp_path, size=8)["x"][0] == pixels.transpose(2, 0, 1)).all()


def test_one_picture_more_moves_no_other(photos: Path) -> None:
    """Neither its pixels nor whether it is held out: the guarantee of the function."""
    before = packed(photos, CLASSES, size=8, hold_out=0.4)
    (photos / "cat" / "00.png").unlink()
    after = packed(photos, CLASSES, size=8, hold_out=0.4)
    gone = 0
    for part in ("x_train", "x_test"):
        rows = {one.tobytes() for one in before[part]}
        left = {one.tobytes() for one in after[part]}
        assert left <= rows
        gone += len(rows) - len(left)
    assert gone == 1


def test_pictures_to_predict_keep_the_order_of_their_names(photos: Path) -> None:
    found = unlabelled(photos / "dog", size=8)
    assert found["names"].tolist() == [f"{place:02}.png" for place in range(1, 20, 2)]
    assert len(found["x"]) == 10


def test_what_cannot_be_packed_is_refused(photos: Path) -> None:
    with pytest.raises(Refused, match=r"no .*photos/bird"):
        packed(photos, ("cat", "bird"), size=8, hold_out=0.2)
    with pytest.raises(Refused, match="two or more different classes"):
        packed(photos, ("cat", "cat"), size=8, hold_out=0.2)
    with pytest.raises(Refused, match="a share to hold out, got neither"):
        packed(photos, CLASSES, size=8)
    (photos / "cat" / "broken.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(Refused, match=r"a picture in .*broken\.png"):
        packed(photos, CLASSES, size=8, hold_out=0.2)
    with pytest.raises(Refused, match="discreet images FOLDER"):
        load(photos)


def test_the_command(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "pets.npz"
    words = ("images", str(photos), "--classes", "cat, dog", "--size", "8", "--hold-out", "0.3", "--out", str(out))
    shown = run(*words).out
    assert "0 cat, 1 dog" in shown
    assert "--classes 2 --records NUMBER" in shown
    task = load(out, classes=2, records=20)
    assert task.shape == (3, 8, 8)
    assert run(*words, "--json").json["classes"] == {"cat": 0, "dog": 1}
    refused(run("images", str(photos), "--hold-out", "0.2", "--out", str(out)), "--classes with --hold-out, got none")
    refused(run("images", str(photos)), "--out, got none")
    refused(run("images", str(photos), "--out", "pets.csv"), "--out to end in .npz")
