"""Whole files are replaced atomically: whatever fails, the old content or all of the new one is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from discreet.core import files


def test_a_file_is_created_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    files.write_json(path, {"step": 1})
    files.write_json(path, {"step": 2})
    assert path.read_text() == '{\n  "step": 2\n}\n'
    assert os.listdir(tmp_path) == ["result.json"]


def test_an_error_while_writing_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")

    def fill(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        files.replace_file(path, fill)
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, float("nan"))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state.pt"]


def test_the_bytes_are_on_the_disk_before_they_get_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that makes a crash harmless: sync the file, rename it, sync the directory."""
    path = tmp_path / "plan.json"
    done: list[tuple[str, object]] = []
    sync, rename = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.append(("sync", place == tmp_path or place.read_bytes()))
        sync(descriptor)

    def noted_rename(source: Any, target: Any) -> None:
        done.append(("rename", Path(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_rename)
    files.write_text(path, "new")
    assert done == [("sync", b"new"), ("rename", path), ("sync", True)]


def test_text_that_cannot_be_encoded_is_written_all_the_same(tmp_path: Path) -> None:
    files.write_text(tmp_path / "page.html", "a\udcffb")
    assert (tmp_path / "page.html").read_bytes() == b"a?b"
