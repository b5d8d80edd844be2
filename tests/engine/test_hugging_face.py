"""Models of transformers as they come: padded masks, scripted functions, mixtures of experts, checkpointing."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, train
from torch import Tensor, nn
from truths import by_autograd

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.trace.library_questions import QUESTIONS
from research.families import text
from research.families.family import SMALL, Family, losses_of, padded, tokens
from research.families.text import MODELS, inputs_of, llama, mixtral

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # DeBERTa's own

INPUTS = padded(SMALL)[1]


def agrees_with_autograd(model: nn.Module, inputs: dict[str, Tensor], *, training: bool = False) -> None:
    """Under the watch, the norms of a private pass are those of autograd, one record at a time."""
    model.train(training)  # dropout is off unless asked for
    truth = by_autograd(model, ((), inputs), losses_of).double().norm(dim=1)
    engine = Engine(model)
    try:
        engine.begin(SMALL.records)
        engine.follow(inputs, SMALL.records)
        engine.backward(losses_of(model(**inputs)))
        assert torch.allclose(engine.norms()[0], truth, rtol=1e-5)
    finally:
        engine.close()


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_text_models_with_a_padded_mask(name: str, how: str) -> None:
    torch.manual_seed(0)
    agrees_with_autograd(MODELS[name](SMALL, how), inputs_of(name, SMALL)[1])


def test_a_mixture_of_experts() -> None:
    torch.manual_seed(0)
    agrees_with_autograd(mixtral(SMALL), INPUTS)
    with pytest.raises(Refused, match=r"set_experts_implementation\(.batched_mm.\)"):
        agrees_with_autograd(mixtral(SMALL, "grouped_mm"), INPUTS)


@pytest.mark.parametrize("family", text.FAMILIES[len(MODELS) + 1 :], ids=lambda family: family.name)
def test_other_text_models(family: Family) -> None:
    torch.manual_seed(0)
    agrees_with_autograd(family.make(SMALL), family.inputs(SMALL)[1])


def test_labels_in_the_batch() -> None:
    """The model then returns the mean loss of the batch beside its scores."""
    torch.manual_seed(0)
    with pytest.raises(Refused, match="leave `labels` out of the inputs"):
        agrees_with_autograd(llama(SMALL), INPUTS | {"labels": INPUTS["input_ids"]})


def test_gradient_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training mode, where transformers checkpoints; Llama has no dropout."""
    torch.manual_seed(0)
    filled: list[RecordedCall] = []
    fill = RecordedCall.fill
    monkeypatch.setattr(RecordedCall, "fill", lambda own, again: (filled.append(own), fill(own, again)))
    model: Any = llama(SMALL)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    agrees_with_autograd(model, INPUTS, training=True)
    assert filled  # calls of the layers were made again


@pytest.mark.parametrize("length", [SMALL.length, 2 * SMALL.records])
def test_no_mask_and_no_cache(length: int) -> None:
    """The positions are public: whether they are packed is answered truly, and no mask is made."""
    torch.manual_seed(0)
    model: Any = llama(SMALL)
    model.config.use_cache = False
    agrees_with_autograd(model, {"input_ids": tokens(SMALL, length)})


def test_scripted_functions_are_restored() -> None:
    torch.manual_seed(0)
    agrees_with_autograd(MODELS["DeBERTa-v2"](SMALL, "eager"), INPUTS)
    module = sys.modules["transformers.models.deberta_v2.modeling_deberta_v2"]
    assert isinstance(module.scaled_size_sqrt, torch.jit.ScriptFunction)


# Questions of libraries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.function)
def test_every_question_exists_in_the_installed_library(question: Any) -> None:
    """A function that was renamed would be refused again, and nobody would know why."""
    found: Any = sys.modules[question.module]
    for name in question.function.split("."):
        found = getattr(found, name)
    assert question.is_asked_by(found.__code__)


def test_the_answer_changes_no_value() -> None:
    """A batch without padding: transformers skips the mask, and a private pass applies it."""
    torch.manual_seed(0)
    model: Any = llama(SMALL).eval()
    inputs = INPUTS | {"attention_mask": torch.ones_like(INPUTS["attention_mask"])}
    expected = model(**inputs).logits
    engine = Engine(model)
    engine.begin(SMALL.records)
    engine.follow(inputs, SMALL.records)
    found = model(**inputs).logits
    engine.close()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_the_same_question_of_the_user_is_refused() -> None:
    def _ignore_causal_mask_sdpa(own: Any, x: Tensor) -> Tensor:
        return x if (x > 0).all() else x * 2

    with pytest.raises(Refused, match="__bool__"):
        train(classifier(_ignore_causal_mask_sdpa))


def test_argument_checks_of_distributions() -> None:
    def body(private: Any, model: Any, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        scores = torch.distributions.Normal(outputs[:, 0], F.softplus(outputs[:, 1]) + 0.1)
        private.step(-scores.log_prob(x[:, 0]))

    assert train(body=body, steps=2).updates == 2
