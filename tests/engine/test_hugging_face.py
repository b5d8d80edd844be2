"""Models of transformers as they come: padded masks, scripted functions, mixtures of experts, checkpointing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from steps import classifier, train
from torch import Tensor, nn
from truths import by_autograd

from discreet.core.check import Refused
from discreet.engine.engine import Engine
from discreet.engine.factors.recorded_call import RecordedCall
from discreet.engine.trace.library_questions import QUESTIONS

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # DeBERTa's own

RECORDS, LENGTH, WORDS = 6, 7, 40
SMALL: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = SMALL | {"intermediate_size": 24, "max_position_embeddings": 20}
DECODER = SMALL | {"intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8}
MODELS: dict[str, Callable[[str], nn.Module]] = {
    "bert": lambda how: hf.BertForSequenceClassification(hf.BertConfig(**ENCODER, attn_implementation=how)),
    "roberta": lambda how: hf.RobertaForSequenceClassification(hf.RobertaConfig(**ENCODER, attn_implementation=how)),
    "distilbert": lambda how: hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(vocab_size=WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=24, attn_implementation=how)
    ),
    "deberta-v2": lambda how: hf.DebertaV2ForSequenceClassification(
        hf.DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"])
    ),
    "gpt2": lambda how: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, attn_implementation=how)
    ),
    "llama": lambda how: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER, attn_implementation=how)),
    "qwen3": lambda how: hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER, attn_implementation=how)),
    "gemma": lambda how: hf.GemmaForCausalLM(hf.GemmaConfig(**DECODER, attn_implementation=how)),
    "mistral": lambda how: hf.MistralForCausalLM(hf.MistralConfig(**DECODER, attn_implementation=how)),
    "opt": lambda how: hf.OPTForCausalLM(
        hf.OPTConfig(**SMALL, ffn_dim=24, max_position_embeddings=20, word_embed_proj_dim=16, attn_implementation=how)
    ),
    "mamba": lambda how: hf.MambaForCausalLM(
        hf.MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, state_size=4)
    ),
    "t5": lambda how: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=WORDS, d_model=16, num_layers=2, num_heads=2, d_kv=8, d_ff=24, decoder_start_token_id=0)
    ),
}


def mixtral(experts: str) -> nn.Module:
    model: Any = hf.MixtralForCausalLM(hf.MixtralConfig(**DECODER, num_local_experts=3))
    model.set_experts_implementation(experts)
    return model  # type: ignore[no-any-return]


def padded() -> dict[str, Tensor]:
    """Records of different lengths; the first is not padded."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(LENGTH) < LENGTH - torch.arange(RECORDS).unsqueeze(1) % 4).long()
    return {"input_ids": torch.randint(3, WORDS, (RECORDS, LENGTH), generator=generator), "attention_mask": mask}


def losses_of(output: Any) -> Tensor:
    return output.logits.flatten(1).sin().sum(1)  # type: ignore[no-any-return]


def agrees_with_autograd(model: nn.Module, inputs: dict[str, Tensor], *, training: bool = False) -> None:
    """Under the watch, the norms of a private pass are those of autograd, one record at a time."""
    model.train(training)  # dropout is off unless asked for
    truth = by_autograd(model, ((), inputs), losses_of).double().norm(dim=1)
    engine = Engine(model)
    try:
        engine.begin(RECORDS)
        engine.follow(inputs, RECORDS)
        engine.backward(losses_of(model(**inputs)))
        assert torch.allclose(engine.norms()[0], truth, rtol=1e-5)
    finally:
        engine.close()


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_text_models_with_a_padded_mask(name: str, how: str) -> None:
    torch.manual_seed(0)
    inputs = padded()
    if name == "t5":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    agrees_with_autograd(MODELS[name](how), inputs)


def test_a_mixture_of_experts() -> None:
    torch.manual_seed(0)
    agrees_with_autograd(mixtral("batched_mm"), padded())
    with pytest.raises(Refused, match=r"set_experts_implementation\(.batched_mm.\)"):
        agrees_with_autograd(mixtral("grouped_mm"), padded())


def test_labels_in_the_batch() -> None:
    """The model then returns the mean loss of the batch beside its scores."""
    torch.manual_seed(0)
    with pytest.raises(Refused, match="leave `labels` out of the inputs"):
        agrees_with_autograd(MODELS["llama"]("sdpa"), padded() | {"labels": padded()["input_ids"]})


def test_gradient_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training mode, where transformers checkpoints; Llama has no dropout."""
    torch.manual_seed(0)
    filled: list[RecordedCall] = []
    fill = RecordedCall.fill
    monkeypatch.setattr(RecordedCall, "fill", lambda own, again: (filled.append(own), fill(own, again)))
    model: Any = MODELS["llama"]("sdpa")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    agrees_with_autograd(model, padded(), training=True)
    assert filled  # calls of the layers were made again


def test_scripted_functions_are_restored() -> None:
    torch.manual_seed(0)
    agrees_with_autograd(MODELS["deberta-v2"]("eager"), padded())
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
    model: Any = MODELS["llama"]("sdpa").eval()
    inputs = padded() | {"attention_mask": torch.ones(RECORDS, LENGTH, dtype=torch.long)}
    expected = model(**inputs).logits
    engine = Engine(model)
    engine.begin(RECORDS)
    engine.follow(inputs, RECORDS)
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
