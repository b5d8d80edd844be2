"""Features clipped to a public norm, which bounds the curvature of a linear model."""

from __future__ import annotations

from torch import Tensor, nn

from discreet.core import check

_INSIDE = 1 - 2**-20  # float32 may round a norm upwards


class ClippedFeatures(nn.Module):
    """Flattens each record's features and clips them to norm `bound`.

    Guarantee: every row of the output has norm at most `bound`. A row with non-finite entries becomes zero.

    The layer is part of the model, so it also clips the features at inference.

    >>> import torch
    >>> ClippedFeatures(1.0)(torch.tensor([[3.0, 4.0], [0.3, 0.4]])).round(decimals=3)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        check.positive("choose a public bound on the norm of the features, e.g. 1.0", bound=bound)
        self._bound = float(bound)

    @property
    def bound(self) -> float:
        """The public bound on the norm of the features."""
        return self._bound

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        # Scale first, because squares of large entries would overflow.
        largest = rows.abs().amax(1, keepdim=True).clamp(min=1.0)
        norms = (rows / largest).double().norm(dim=1, keepdim=True) * largest
        factor = (self._bound * _INSIDE / norms).clamp(max=1.0).to(rows.dtype)
        finite = norms.isfinite()
        zero = rows.new_zeros(())
        clipped: Tensor = rows.where(finite, zero) * factor.where(finite, zero)
        return clipped

    def extra_repr(self) -> str:
        return f"bound={self._bound:g}"
