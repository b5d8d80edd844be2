"""Models of their published sizes, with the weights of packages in the data folder."""

from __future__ import annotations

from typing import Final

import transformers as hf
from torch import Tensor, nn

from discreet.data.features.sentences import HOW, WEIGHTS, WEIGHTS_SHA256
from research.families.family import Family, Scale, padded
from research.tasks.files import published


class Sentences(nn.Module):
    """MiniLM and a head on the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        folder = published(WEIGHTS, WEIGHTS_SHA256, HOW).parent
        self.encoder = hf.BertModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
        self.head = nn.Linear(self.encoder.config.hidden_size, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        scores: Tensor = self.head(hidden.mean(1))
        return scores


def _minilm(scale: Scale) -> nn.Module:
    return Sentences()


def _smollm2(scale: Scale) -> nn.Module:
    from research.tasks import smollm2  # needs the research extra

    return smollm2.language_model(smollm2.weights())


_TOLD: Final = "published weights, padded mask"
FAMILIES: Final = tuple(
    Family(name=name, library="transformers", settings=f"{_TOLD}, {head}", make=make, inputs=padded)
    for name, head, make in (("all-MiniLM-L6-v2", "classifier", _minilm), ("SmolLM2-135M", "language model", _smollm2))
)
