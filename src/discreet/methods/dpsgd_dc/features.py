"""Features of a public norm: what makes the curvature of a linear model a public number."""

from __future__ import annotations

from torch import Tensor, nn

from discreet.core import check

_INSIDE = 1 - 2**-20  # float32 may round a norm upwards


class ClippedFeatures(nn.Module):
    """Each record's features as one row, scaled down to norm `bound` where they are longer.

    Guarantee: every row of the output has norm at most `bound`; a row that is not finite becomes zero. It belongs to
    the model: a released model expects clipped features too.

    >>> import torch
    >>> ClippedFeatures(1.0)(torch.tensor([[3.0, 4.0], [0.3, 0.4]])).round(decimals=3)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        check.positive("the norm that features are clipped to, e.g. 1.0", bound=bound)
        self._bound = float(bound)

    @property
    def bound(self) -> float:
        """The public norm."""
        return self._bound

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        # Scaled first: squares of large entries would overflow.
        largest = rows.abs().amax(1, keepdim=True).clamp(min=1.0)
        norms = (rows / largest).double().norm(dim=1, keepdim=True) * largest
        factor = (self._bound * _INSIDE / norms).clamp(max=1.0).to(rows.dtype)
        finite = norms.isfinite()
        zero = rows.new_zeros(())
        clipped: Tensor = rows.where(finite, zero) * factor.where(finite, zero)
        return clipped

    def extra_repr(self) -> str:
        return f"bound={self._bound:g}"
