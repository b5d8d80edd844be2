"""Whether everything that is trainable moves. Adapters that keep their initial values are the silent way to fail."""

from typing import Final, final

from torch import nn

from discreet.integrations.refusal import require

FIRST: Final = 3  # steps after which every parameter must have moved: a schedule may start at zero
_ENTRIES: Final = 256  # of each parameter that are compared
_SHOWN: Final = 3


@final
class Movement:
    """The trainable parameters as they were when the run began or was continued."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self._due, self._is_checked = step + FIRST, False
        self._before = {
            name: parameter.detach().flatten()[:_ENTRIES].clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        got, remedy = "none", "unfreeze a part of the model, or add adapters: get_peft_model(model, LoraConfig(...))"
        require(bool(self._before), "trainable parameters", got, remedy)

    def look(self, model: nn.Module, step: int) -> None:
        """Check once, after the first steps."""
        if step >= self._due and not self._is_checked:
            self.check(model)

    def check(self, model: nn.Module) -> None:
        """Refuse a model with a trainable parameter that is still at its initial value."""
        self._is_checked = True
        now = dict(model.named_parameters())
        still = [name for name, old in self._before.items() if bool((_first(now[name]) == old.to(now[name])).all())]
        expected = "every trainable parameter to move; each gets noise in every step"
        got = f"{len(still)} of {len(self._before)} at their initial values, such as {', '.join(still[:_SHOWN])}"
        remedy = "check the learning rate, and keep trained weights in float32: small updates vanish in bfloat16"
        require(not still, expected, got, remedy)


def _first(parameter: nn.Parameter) -> nn.Parameter:
    return parameter.detach().flatten()[:_ENTRIES]  # type: ignore[return-value]
