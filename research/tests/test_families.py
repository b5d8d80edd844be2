"""Every family of models as it comes: norms are those of autograd, one record at a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import discreet

pytest.importorskip("timm", reason="needs the test extra: pip install -c constraints.txt -e '.[test]'")

from discreet.core.check import Refused
from research.families import page, text
from research.families.family import SMALL, Family, losses_of
from research.families.measure import ALL, FAMILIES, made, norm_error, row

pytestmark = [  # of DeBERTa and WavLM
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask"),
]
# tests/engine/test_hugging_face.py has the text models, with both kinds of attention.
OTHERS = [family for family in FAMILIES if family not in text.FAMILIES]


# One of each kind, as a step of each takes about a second.
IN_A_LOOP = (
    *("BERT", "T5", "LoRA on Llama", "prompt tuning on Llama", "Whisper", "Wav2Vec2", "DeiT", "embedding bags"),
    *("Swin (transformers)", "NFNet", "WavLM", "DeBERTa"),
)


@pytest.mark.parametrize("family", OTHERS, ids=lambda family: family.name)
def test_norms_are_those_of_autograd(family: Family) -> None:
    assert norm_error(family) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL[len(FAMILIES) :], ids=lambda family: family.name)
def test_norms_of_published_weights(family: Family) -> None:
    try:
        made(family, SMALL)
    except (Refused, ImportError) as missing:
        pytest.skip(str(missing))
    assert norm_error(family) < 1e-5


@pytest.mark.parametrize("family", [one for one in FAMILIES if one.name in IN_A_LOOP], ids=lambda family: family.name)
def test_private_steps_on_batches_of_two_sizes(family: Family) -> None:
    model, (args, named) = made(family, SMALL)
    found = discreet.check(model, named or args, loss=lambda output, inputs: losses_of(output))
    assert found.refusals == ()


def test_a_row_and_its_page(tmp_path: Path) -> None:
    family = next(one for one in FAMILIES if one.name == "variational autoencoder")
    found = row(family)
    answer = {"families": {family.name: found}, "command": "this", "torch": "2", "threads": 1, "records": 16}
    assert found["over_plain"] > 0
    document = tmp_path / "models.md"
    document.write_text("Before\n<!-- families -->\nold\n<!-- end -->\nafter\n")
    page.write(answer, document)
    text = document.read_text()
    assert text.startswith("Before\n<!-- families -->\n| family |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| variational autoencoder | torch 2" in text
    assert f"| {found['over_plain']:.2f} |" in text
    refused = {name: value for name, value in found.items() if name != "over_plain"}
    assert "| refused |" in page.table(answer | {"families": {family.name: refused}})


def test_every_family_is_on_the_page() -> None:
    kept = json.loads((page.PAGE.parents[1] / "results" / "models.json").read_text())
    assert list(kept["families"]) == [family.name for family in ALL]
    assert page.table(kept) in page.PAGE.read_text(encoding="utf-8")
