"""One loss for each record, for the heads of Hugging Face's models.

Index legend: N records, T tokens, C classes or vocabulary.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor

from discreet.integrations.refusal import refuse

IGNORED: Final = -100  # the label of tokens without a loss
_TOKENS: Final = ("ForTokenClassification", "ForMaskedLM")
_WHOLE: Final = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
)


def record_losses(model: Any, logits: Any, labels: Mapping[str, Tensor], smoothing: float = 0.0) -> Tensor:
    """The losses [N] of a model, by the kind of its head. A record's tokens are averaged over that record alone."""
    kind = getattr(model, "loss_type", None)
    if set(labels) == {"labels"}:
        given = labels["labels"]
        if model.config.is_encoder_decoder and kind not in _WHOLE:
            return token_losses(logits, given, smoothing)
        if kind in ("ForCausalLM", "ForConditionalGeneration"):
            return token_losses(logits[:, :-1], given[:, 1:], smoothing)
        if kind in _TOKENS:
            return token_losses(logits, given, smoothing)
        if kind in _WHOLE:
            return class_losses(logits, given, model.config.problem_type, smoothing)
    return refuse(
        "a model for causal or masked language modelling, sequence-to-sequence, or classification, with `labels`",
        f"{type(model).__name__} with {sorted(labels) or 'no labels'}",
        "override compute_loss_per_record(model, inputs), which returns one loss for each record",
    )


def token_losses(logits_NTC: Tensor, labels_NT: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean loss of each record's own tokens; 0 for a record without any."""
    # One row for each token: with classes on another axis, large vocabularies take twice the time.
    rows, labels = logits_NTC.float().flatten(0, 1), labels_NT.flatten()
    losses = F.cross_entropy(rows, labels, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)
    return losses.view(labels_NT.shape).sum(1) / (labels_NT != IGNORED).sum(1).clamp(min=1)


def class_losses(logits_NC: Tensor, labels: Tensor, problem: str | None, smoothing: float = 0.0) -> Tensor:
    """Regression, several labels or one label for each record, as `problem_type` says or as transformers guesses it."""
    logits_NC = logits_NC.float()
    if problem == "regression" or (problem is None and logits_NC.shape[1] == 1):
        return F.mse_loss(logits_NC, labels.float().reshape(logits_NC.shape), reduction="none").mean(1)
    if problem == "multi_label_classification" or (problem is None and labels.is_floating_point()):
        return F.binary_cross_entropy_with_logits(logits_NC, labels.float(), reduction="none").mean(1)
    return F.cross_entropy(logits_NC, labels, reduction="none", label_smoothing=smoothing)
