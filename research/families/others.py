"""Speech models of transformers, embedding bags and a variational autoencoder."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from research.families.family import WORDS, Family, Inputs, Scale, drawn, padded, tokens
from research.families.text import bert


def _whisper(scale: Scale) -> nn.Module:
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": scale.heads, "decoder_attention_heads": scale.heads}
    widths = {"encoder_ffn_dim": 2 * scale.hidden, "decoder_ffn_dim": 2 * scale.hidden, "num_mel_bins": 8}
    longest = {"max_source_positions": scale.length, "max_target_positions": scale.length}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = hf.WhisperConfig(vocab_size=WORDS, d_model=scale.hidden, **layers, **heads, **widths, **longest, **special)
    return hf.WhisperForConditionalGeneration(config)


def _spectrogram(scale: Scale) -> Inputs:
    return (), {"input_features": drawn(scale, 8, 2 * scale.length), "decoder_input_ids": tokens(scale)}


def wav2vec2(scale: Scale, *, layerdrop: float = 0.0, augments: bool = False) -> nn.Module:
    layers = {"num_hidden_layers": 2, "num_attention_heads": scale.heads, "intermediate_size": 2 * scale.hidden}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3), "feat_extract_norm": "layer"}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
    chance = {"layerdrop": layerdrop, "apply_spec_augment": augments}
    config = hf.Wav2Vec2Config(
        vocab_size=WORDS, hidden_size=scale.hidden, **layers, **convolutions, **positions, **chance
    )
    return hf.Wav2Vec2ForCTC(config)


def _wavlm(scale: Scale) -> nn.Module:
    layers = {"num_hidden_layers": 2, "num_attention_heads": scale.heads, "intermediate_size": 2 * scale.hidden}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3), "feat_extract_norm": "layer"}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2}
    chance = {"layerdrop": 0.0, "apply_spec_augment": False}
    config = hf.WavLMConfig(
        hidden_size=scale.hidden, **layers, **convolutions, **positions, **chance, num_buckets=8, max_bucket_distance=16
    )
    return hf.WavLMForSequenceClassification(config)


def waves(scale: Scale) -> Inputs:
    length = 16 * scale.length
    mask = (torch.arange(length) < length - 8 * (torch.arange(scale.records).unsqueeze(1) % 4)).long()
    return (), {"input_values": drawn(scale, length), "attention_mask": mask}


class Recommender(nn.Module):
    """As DLRM: bags of categories and dense numbers, whose products go through a network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, width, mode=mode) for mode in ("sum", "mean", "max"))
        self.dense = nn.Linear(5, width)
        self.top = nn.Sequential(nn.Linear(width + 6, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        bags = [bag(categories[:, i]) for i, bag in enumerate(self.bags)]
        features = torch.stack([self.dense(numbers), *bags], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1)
        outputs: Tensor = self.top(torch.cat([features[:, 0], products[:, rows, columns]], 1))
        return outputs


def _clicks(scale: Scale) -> Inputs:
    categories = torch.randint(0, 20, (scale.records, 3, 4), generator=torch.Generator().manual_seed(2))
    return (drawn(scale, 5), categories), {}


class Autoencoder(nn.Module):
    """A variational autoencoder; its output is the negative bound on the likelihood of each record."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 8))
        self.decoder = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 16))

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        posterior = Normal(mean, (log_variance / 2).exp())
        likelihood = Independent(Normal(self.decoder(posterior.rsample()), 1.0), 1)
        gap: Any = kl_divergence(posterior, Normal(torch.zeros(4), 1.0))
        bound: Tensor = gap.sum(1) - likelihood.log_prob(x)
        return bound


def _rows(scale: Scale) -> Inputs:
    return (drawn(scale, 16),), {}


def _checkpointed(scale: Scale) -> nn.Module:
    model: Any = bert(scale)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model  # type: ignore[no-any-return]


FAMILIES = (
    Family(name="Whisper", library="transformers", settings="encoder and decoder", make=_whisper, inputs=_spectrogram),
    Family(
        name="Wav2Vec2",
        library="transformers",
        settings="padded mask, apply_spec_augment=False, layerdrop=0.0",
        make=wav2vec2,
        inputs=waves,
    ),
    Family(
        name="BERT checkpointed",
        library="transformers",
        settings="training mode with dropout, gradient checkpointing, use_reentrant=False",
        make=_checkpointed,
        inputs=padded,
        is_training=True,
    ),
    Family(
        name="embedding bags",
        library="torch",
        settings="as DLRM: sum, mean and max",
        make=lambda scale: Recommender(scale.hidden // 4),
        inputs=_clicks,
    ),
    Family(
        name="variational autoencoder",
        library="torch",
        settings="training mode, torch.distributions with validation",
        make=lambda scale: Autoencoder(2 * scale.hidden),
        inputs=_rows,
        is_training=True,
    ),
    Family(
        name="WavLM",
        library="transformers",
        settings="padded mask, training mode, apply_spec_augment=False, layerdrop=0.0",
        make=_wavlm,
        inputs=waves,
        is_training=True,
    ),
)
