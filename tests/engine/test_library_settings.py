"""Settings of libraries around a model: precision, scaling, compiling, checkpointing, layers that are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
from steps import classifier, each, rows, train
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from discreet import Horizon, Private, Streams, methods
from discreet.core.check import Refused
from discreet.engine.engine import Engine
from research.families.family import SMALL, losses_of, padded
from research.families.others import wav2vec2, waves
from research.families.text import llama

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Inside(nn.Module):
    """Autocast in forward(), as Accelerate makes it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers, self.dtype = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.dtype):
            outputs: Tensor = self.layers(x)
        return outputs.float()


def inside(dtype: torch.dtype) -> Private:
    return train(Inside(dtype))


def around(dtype: torch.dtype) -> Private:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.autocast("cpu", dtype=dtype):
            outputs = model(x)
        private.step(each(outputs.float(), y))

    return train(body=body)


def parameters(dtype: torch.dtype) -> Private:
    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(each(model(x.to(dtype)).float(), y))

    return train(classifier().to(dtype), body, inputs=lambda batch: batch[0].to(dtype))


@pytest.mark.parametrize("place", [inside, around, parameters])
def test_bfloat16_is_trained_and_float16_refused(place: Any) -> None:
    assert place(torch.bfloat16).updates == 4
    with pytest.raises(Refused, match=r"got float16\. Remedy: use bfloat16"):
        place(torch.float16)


def test_autocast_around_a_language_model() -> None:
    torch.manual_seed(0)
    model, (_, inputs) = llama(SMALL).eval(), padded(SMALL)
    norms = []
    for is_half in (False, True):
        engine = Engine(model)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            engine.begin(SMALL.records)
            engine.follow(inputs, SMALL.records)
            engine.backward(losses_of(model(**inputs)))
        norms.append(engine.norms()[0])
        engine.close()
    assert torch.allclose(*norms, rtol=0.05)  # bfloat16 has 8 bits
    assert not torch.allclose(*norms, rtol=1e-5)


def test_grad_scaler_is_refused_with_the_reason() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def body(private: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        private.step(scaler.scale(each(model(x), y)))

    with pytest.raises(Refused, match=r"the scale of a GradScaler.*Remedy: leave GradScaler out"):
        train(body=body)


@pytest.fixture
def accelerator() -> Iterator[accelerate.Accelerator]:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_what_accelerate_prepared(accelerator: accelerate.Accelerator) -> None:
    model = classifier()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    plan = methods.dp_sgd().bind(noise=1.0, horizon=Horizon.of(records=40, batch=12, steps=3), delta=1e-5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    private = Private(model, optimizer, plan, rows(6), streams=Streams.seeded(5))
    for x, y in private:
        private.step(each(model(x), y))
    private.close()
    assert private.updates == 3
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_compiled_model(is_whole: bool) -> None:
    model: Any = torch.compile(classifier(), backend="eager")
    if not is_whole:
        model = nn.Sequential(nn.Linear(6, 6), model)
    with pytest.raises(Refused, match=r"as it was before torch\.compile, and compile it for evaluation only"):
        train(model)


def test_reentrant_checkpointing() -> None:
    class Model(nn.Module):
        def __init__(self, is_reentrant: bool) -> None:
            super().__init__()
            self.first, self.second, self.is_reentrant = nn.Linear(6, 6), nn.Linear(6, 3), is_reentrant

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = checkpoint(self.second, self.first(x), use_reentrant=self.is_reentrant)
            return outputs

    assert train(Model(is_reentrant=False)).updates == 4
    with pytest.raises(Refused, match="use_reentrant=False"):
        train(Model(is_reentrant=True))


def test_a_transformer_with_reentrant_checkpointing() -> None:
    torch.manual_seed(0)
    model: Any = llama(SMALL).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(Refused, match="gradient_checkpointing_kwargs of transformers"):
        _run(model, padded(SMALL)[1])


@pytest.mark.parametrize(
    ("chance", "match"), [({"layerdrop": 0.5}, "layerdrop=0.0"), ({"augments": True}, "apply_spec_augment=False")]
)
def test_random_parts_of_speech_models(chance: dict[str, Any], match: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Refused, match=match):
        _run(wav2vec2(SMALL, **chance).train(), {"input_values": waves(SMALL)[1]["input_values"]})


def _run(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    engine = Engine(model)
    try:
        engine.begin(SMALL.records)
        engine.follow(inputs, SMALL.records)
        engine.backward(losses_of(model(**inputs)))
    finally:
        engine.close()
