"""An exponential moving average of the parameters. It sees released values only, so it costs no privacy."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import nn

from discreet.core import check


@final
class Average:
    """The moving average a <- decay * a + (1 - decay) * parameters, with bias correction as in Adam.

    Guarantee: post-processing of released parameters.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        check.inside_unit("choose the decay of the average, e.g. 0.99", decay=decay)
        self.decay, self._updates = decay, 0
        self._sums = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the current parameters to the average."""
        self._updates += 1
        for name, parameter in model.named_parameters():
            if name in self._sums:
                self._sums[name].lerp_(parameter, 1 - self.decay)

    @contextlib.contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Use the averaged weights inside the `with` block, and restore the model's own weights after it."""
        correction = 1 - self.decay**self._updates
        own = {name: p.detach().clone() for name, p in model.named_parameters() if name in self._sums}
        try:
            if self._updates:
                self._write(model, {name: total / correction for name, total in self._sums.items()})
            yield
        finally:
            self._write(model, own)

    @staticmethod
    @torch.no_grad()
    def _write(model: nn.Module, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in model.named_parameters():
            if name in values:
                parameter.copy_(values[name])

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"decay": self.decay, "updates": self._updates, "sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint with the same parameters and decay."""
        expected, got = "an average of this model with this decay", f"decay={state['decay']}"
        remedy = "resume with the settings of the original run"
        check.require(state["decay"] == self.decay and state["sums"].keys() == self._sums.keys(), expected, got, remedy)
        self._updates = state["updates"]
        for name, total in self._sums.items():
            total.copy_(state["sums"][name])
