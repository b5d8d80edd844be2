"""Calls that draw: their random numbers hide no place and no number of records."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from steps import classifier, each, train
from torch import Tensor, nn
from torch.nn import init

from discreet import Private
from discreet.core.check import Refused
from discreet.engine.proof.draws.steady_draws import SteadyDraws

Draw = Callable[[Tensor], Tensor]
KEYS, VALUES = torch.zeros(1, 70, 3), (-1.0) ** torch.arange(70.0).view(1, 70, 1) * torch.arange(1.0, 71).view(1, 70, 1)


def attention(query: Tensor) -> Tensor:
    """A causal mask along the records: the first sees one value, the second two, ..."""
    return F.scaled_dot_product_attention(query, KEYS, VALUES, is_causal=True, dropout_p=1e-6)[0]


HIDDEN: dict[str, Draw] = {
    "count, as a mean": lambda h: torch.normal(len(h), h * 0),
    "count, as a mean in place": lambda h: torch.zeros_like(h).normal_(len(h), 1e-9),
    "count, as a scale": lambda h: init.normal_(torch.zeros_like(h), 0.0, len(h)),
    "count, as a bound": lambda h: torch.randint_like(h, len(h)),
    "count, as a size": lambda h: init.kaiming_uniform_(torch.zeros_like(h), mode="fan_out"),
    "place, as a mean": lambda h: torch.normal(torch.arange(len(h)).float()[:, None], h * 0),
    "place, as a rate": lambda h: torch.poisson(torch.arange(len(h)).float()[:, None] + 0 * h),
    "place, by a mask": lambda h: attention(h.unsqueeze(0)),
    "place, by a mask of public rows": lambda h: attention(torch.zeros(1, len(h), 3)),
}


def with_draws(draw: Draw) -> Callable[..., None]:
    def body(private: Private, model: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = model(x)
        private.step(each(outputs * draw(outputs.detach()), y))

    return body


@pytest.mark.parametrize("name", HIDDEN)
def test_what_is_hidden_is_refused(name: str) -> None:
    """Leaving one record out moved the sum by 7 to 39 clips."""
    with pytest.raises(Refused, match=r"in which each record stands alone|same calls with the same numbers"):
        train(classifier(), with_draws(HIDDEN[name]), steps=1, fixed=False)


INNOCENT: dict[str, Draw] = {
    "dropout": lambda h: F.dropout(h, 0.5),
    "dropout of features": lambda h: F.feature_alpha_dropout(h.unsqueeze(2), 0.5, True).squeeze(2),
    "noise": lambda h: h + torch.randn_like(h),
    "noise in place": lambda h: h + torch.empty_like(h).uniform_(-1, 1),
    "a mean of its own": lambda h: torch.normal(h, 1.0),
    "chances of its own": lambda h: torch.bernoulli(h.sigmoid()),
    "drop path": lambda h: h * torch.empty(len(h), 1).bernoulli_(0.9),
    "Gumbel": lambda h: F.gumbel_softmax(h, hard=True),
    "whole numbers": lambda h: h * torch.randint_like(h, 5),
    "attention within a record": lambda h: F.scaled_dot_product_attention(
        h.unsqueeze(2), h.unsqueeze(2), h.unsqueeze(2), is_causal=True, dropout_p=0.1
    ).squeeze(2),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_draws_of_each_record_are_accepted(name: str) -> None:
    assert train(classifier(), with_draws(INNOCENT[name]), steps=2, fixed=False).progress.step == 2


def test_steady_draws_follow_their_parameters_and_nothing_else() -> None:
    state = torch.get_rng_state()
    with SteadyDraws():
        for draw in (torch.rand, torch.randn, lambda *size: torch.zeros(size).normal_(3, 2)):
            made = draw(4, 5)
            assert made.unique().numel() == 1
        assert torch.equal(torch.bernoulli(torch.eye(3)), torch.eye(3))
        assert F.dropout(torch.ones(4, 5), 0.3).unique().numel() == 1
        means = [float(torch.zeros(1).normal_(mean, 1)) for mean in (1, 2)]
        bounds = [int(torch.randint(0, high, (1,))) for high in (8, 80)]
    assert means[0] != means[1]
    assert bounds[0] != bounds[1]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.rand(9).unique().numel() == 9  # outside of the block
