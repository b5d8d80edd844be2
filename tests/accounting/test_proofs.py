"""Every event has a proof, and every proof was read against the code that runs."""

from pathlib import Path

import proofs
import pytest

from discreet.accounting.events import EVENTS, NonPrivate

WRITTEN = sorted(proofs.PROOFS.glob("*.md"))


def test_every_event_has_a_proof() -> None:
    missing = {cls.__name__ for cls in EVENTS.values() if cls is not NonPrivate} - {path.stem for path in WRITTEN}
    assert not missing


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_proof_has_its_parts(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n")
    for part in ("## Statement", "## Assumptions", "## Proof"):
        assert f"\n{part}\n" in text
    assert proofs.cited(path), "a proof names the code that it was read against"
    assert text.count("code-sha256:") == len(proofs.cited(path)), "a line of code is malformed"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_a_proof_was_read_against_the_code_that_runs(path: Path) -> None:
    stale = [f"{file}::{name}" for file, name, digest in proofs.cited(path) if proofs.digest(file, name) != digest]
    assert not stale, f"read {path.name} again beside {stale}, then renew its lines (tests/accounting/proofs.py)"


def test_the_digest_sees_code_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: another number changes the digest, another comment, docstring or layout does not."""
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    versions = {
        "a.py": 'class K:\n    def f(self, x):\n        """One."""\n        return x + 1\n',
        "b.py": 'class K:\n    def f(self, x):  # why\n        """Two."""\n\n        return (x + 1)\n',
        "c.py": 'class K:\n    def f(self, x):\n        """One."""\n        return x + 2\n',
    }
    for name, text in versions.items():
        (tmp_path / name).write_text(text)
    digests = [proofs.digest(name, "K.f") for name in versions]
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(StopIteration):
        proofs.digest("a.py", "K.g")
