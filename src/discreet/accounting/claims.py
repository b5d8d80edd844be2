"""What a paper's theorem states for a run. A claim is shown beside the certificate and never used for it.

`epsilon(delta)` is None where the theorem's hypotheses fail for the run, or where it says nothing about it.
"""

from __future__ import annotations

import abc
import enum
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from discreet.accounting.events import ClippedFeedback, Event
from discreet.core import check
from discreet.core.relation import Neighbouring

if TYPE_CHECKING:
    from discreet.accounting.charges import Charge

_ABOUT_DELTA = "delta is the probability that the claim fails"


class Claim(abc.ABC):
    """The epsilon that a paper states for a run, its theorem, and what that theorem takes for granted."""

    theorem: str
    assumes: str

    @abc.abstractmethod
    def epsilon(self, delta: float) -> float | None:
        """The claimed epsilon at this delta; None where the claim does not reach."""

    def delta(self, delta: float) -> float:
        """The delta at which `epsilon(delta)` is claimed, where the theorem adds something to it."""
        return delta

    def repeated(self, times: int) -> Claim | None:
        """The claim for `times` such runs on the same data; None if the paper gives no rule."""
        return self if times == 1 else None

    def joined(self, other: Claim) -> Claim | None:
        """The claim for this run and another one on the same data; None if the paper gives no rule."""
        return None

    def to_json(self, delta: float) -> dict[str, Any] | None:
        """{"epsilon", "delta", "theorem"}, or None where nothing is claimed; infinite is the string "inf"."""
        epsilon = self.epsilon(delta)
        if epsilon is None:
            return None
        value = epsilon if math.isfinite(epsilon) else "inf"
        return {"epsilon": value, "delta": self.delta(delta), "theorem": self.theorem}


class Accounting(enum.Enum):
    """The accountant that a paper used."""

    PLD = "PLD"
    RDP = "RDP"


@final
@dataclass(frozen=True, kw_only=True)
class AccountedClaim(Claim):
    """DP-SGD accounting of the noise that was drawn, whatever else the method does."""

    events: tuple[tuple[Event, int], ...]
    by: Accounting
    theorem: str
    assumes: str

    def epsilon(self, delta: float) -> float | None:
        """Composition of the claimed events under add/remove."""
        from discreet.accounting.accountants import pld_epsilon, rdp_epsilon

        account = {Accounting.PLD: pld_epsilon, Accounting.RDP: rdp_epsilon}[self.by]
        return account(self._charge(), delta=delta, relation=Neighbouring.ADD_REMOVE)

    def repeated(self, times: int) -> AccountedClaim:
        """Accountants compose."""
        return replace(self, events=(self._charge() * times).certified)

    def joined(self, other: Claim) -> AccountedClaim | None:
        """Accountants compose, if both runs were accounted alike."""
        alike = isinstance(other, AccountedClaim) and (other.by, other.theorem) == (self.by, self.theorem)
        if not alike or not isinstance(other, AccountedClaim):
            return None
        return replace(self, events=(self._charge() + other._charge()).certified)

    def _charge(self) -> Charge:
        from discreet.accounting.charges import Charge

        return Charge(self.events)


@final
@dataclass(frozen=True, kw_only=True)
class GeoDpOneStepClaim(Claim):
    """GeoDP: one step is (sqrt(2 ln(1.25/delta)) / sigma, delta + delta')-DP with delta' = 1 - beta.

    The paper gives no rule for several steps: `one_step` is what can be shown for them, labelled so.

    >>> claim = GeoDpOneStepClaim(noise=1.0, beta=1.0, steps=1)
    >>> round(claim.epsilon(1e-5), 5)
    4.84481
    """

    noise: float
    beta: float
    steps: int = 1
    theorem: str = "GeoDP (arXiv 2504.05618), Lemma 2 and Theorem 5, one step"
    assumes: str = "the angle of an average of B gradients has sensitivity (range of the angle)/B"

    def __post_init__(self) -> None:
        check.not_negative("noise is the multiplier sigma of the paper", noise=self.noise)
        check.fraction("beta is the share of the directions that is protected", beta=self.beta)
        check.count("count the steps", steps=self.steps)

    def one_step(self, delta: float) -> float:
        """The claim for one step alone."""
        check.inside_unit(_ABOUT_DELTA, delta=delta)
        return math.sqrt(2 * math.log(1.25 / delta)) / self.noise if self.noise > 0 else math.inf

    def epsilon(self, delta: float) -> float | None:
        """The claim for one step; None for more."""
        return self.one_step(delta) if self.steps == 1 else None

    def delta(self, delta: float) -> float:
        """delta + delta'."""
        return min(1.0, delta + (1 - self.beta))

    def repeated(self, times: int) -> GeoDpOneStepClaim:
        """More steps, for which nothing is claimed."""
        return replace(self, steps=self.steps * times)

    def joined(self, other: Claim) -> GeoDpOneStepClaim | None:
        """More steps, for which nothing is claimed."""
        if isinstance(other, GeoDpOneStepClaim) and replace(other, steps=self.steps) == self:
            return replace(self, steps=self.steps + other.steps)
        return None


@final
@dataclass(frozen=True, kw_only=True)
class DiceClaim(Claim):
    """DiceSGD, Theorem 3.8 solved for epsilon: sqrt(32 T (C1^2 + 2 min(C^2, G'^2)) ln(1/delta)) / (N sigma).

    C = batch * C2; G' = G - C1 from the pre-clip, else infinite. Needs batch <= N/5 and C1 <= C2.
    """

    run: ClippedFeedback
    records: int
    theorem: str = "DiceSGD (arXiv 2311.14632), Theorem 3.8"
    assumes: str = "the bounds G and sigma exist but may be arbitrarily large; batch/records <= 1/5; C1 <= C2"

    def __post_init__(self) -> None:
        check.count("records is the public size of the data", records=self.records)

    def epsilon(self, delta: float) -> float | None:
        """The claim for the whole run."""
        check.inside_unit(_ABOUT_DELTA, delta=delta)
        run = self.run
        if run.batch / self.records > 1 / 5 or run.clip > run.feedback_clip:
            return None
        error = math.inf if run.preclip is None else max(0.0, run.preclip - run.clip)
        square = run.clip**2 + 2 * min(run.batch * run.feedback_clip, error) ** 2
        if run.noise_std_on_mean == 0:
            return math.inf
        top = math.sqrt(32 * run.steps * square * math.log(1 / delta))
        return top / (self.records * run.noise_std_on_mean)


@final
@dataclass(frozen=True, kw_only=True)
class LastIterateClaim(Claim):
    """DPSGD-GC (no domain) and DPSGD-DC (a domain): Theorems 3.3 and 3.4 in RDP, converted by Lemma 2.4.

    Theorem 3.3: r(a) = 2 a C^2 T / (n b sigma^2).  Theorem 3.4 (Eq. 54): also
    r(a) = a (sqrt(2 C^2 / (n b sigma^2)) + sqrt((1 + eta L)^2 D^2 / (2 eta^2 sigma^2)))^2.
    Where b <= n/5 and Lemma A.13 applies, 2 C^2 / (n b) becomes 8 C^2 / n^2.
    """

    records: int
    batch: float
    clip: float
    noise_std_on_mean: float
    steps: int
    learning_rate: float | None = None
    smoothness: float | None = None
    diameter: float | None = None
    theorem: str = "DPSGD-DC (arXiv 2502.17772), Theorems 3.3 and 3.4"
    assumes: str = "an L-smooth loss; only the last iterate is seen; the paper's Lemma 3.2 in both directions"

    def __post_init__(self) -> None:
        check.count("public sizes are whole numbers", records=self.records, steps=self.steps)
        check.positive("bounds and batch sizes are positive", batch=self.batch, clip=self.clip)
        check.not_negative("0 means no noise", noise_std_on_mean=self.noise_std_on_mean)
        domain = (self.learning_rate, self.smoothness, self.diameter)
        known = [value is not None for value in domain]
        remedy = "a domain needs its diameter, the learning rate and the smoothness of the loss"
        check.require(all(known) or not any(known), "all of them or none", f"{domain}", remedy)
        if all(known):
            check.positive(remedy, learning_rate=self.learning_rate, diameter=self.diameter)
            check.not_negative(remedy, smoothness=self.smoothness)

    def epsilon(self, delta: float) -> float | None:
        """min over orders a of r(a) + ln(1/delta)/(a - 1)."""
        check.inside_unit(_ABOUT_DELTA, delta=delta)
        if self.noise_std_on_mean == 0:
            return math.inf
        # r(a) = a * slope has its least at a = 1 + sqrt(ln(1/delta) / slope).
        log = math.log(1 / delta)
        slope = self.rdp(1.0)
        plain = slope + 2 * math.sqrt(slope * log)
        orders = [1 + 10 ** (k / 50) for k in range(-100, 201)]
        strong = [self._strengthened(order) + log / (order - 1) for order in orders]
        return min(plain, *strong)

    def rdp(self, order: float) -> float:
        """r(a) by Theorem 3.3, and by Theorem 3.4 where a domain is given.

        >>> figure = dict(records=8, batch=2, clip=2.0, noise_std_on_mean=4.0, learning_rate=0.2)
        >>> round(LastIterateClaim(steps=50, smoothness=1.0, diameter=1.0, **figure).rdp(1.1), 6)
        1.684375
        """
        step = 2 * self.clip**2 / (self.records * self.batch * self.noise_std_on_mean**2)
        composed = step * self.steps
        absorbed = self._absorbed()
        bounded = math.inf if absorbed is None else (math.sqrt(step) + math.sqrt(absorbed)) ** 2
        return order * min(composed, bounded)

    def _absorbed(self) -> float | None:
        """(1 + eta L)^2 D^2 / (2 eta^2 sigma^2): what hiding the start of the run costs, per order."""
        if self.learning_rate is None or self.smoothness is None or self.diameter is None:
            return None
        growth = (1 + self.learning_rate * self.smoothness) * self.diameter
        return growth**2 / (2 * self.learning_rate**2 * self.noise_std_on_mean**2)

    def _strengthened(self, order: float) -> float:
        """r(a) with 8 C^2 / (beta n^2 sigma^2) a step, over the beta that Lemma A.13 allows, if any."""
        if 5 * self.batch > self.records:
            return math.inf
        step = 8 * self.clip**2 / (self.records**2 * self.noise_std_on_mean**2)
        noise, rate = self.batch * self.noise_std_on_mean / (2 * self.clip), self.batch / self.records
        absorbed = self._absorbed()
        best = math.inf
        for beta in (k / 100 for k in range(1, 101)):
            if not _lemma_a13(order, rate, math.sqrt(beta) * noise):
                continue
            bounded = math.inf if absorbed is None or beta == 1 else step / beta + absorbed / (1 - beta)
            best = min(best, order * min(step / beta * self.steps, bounded))
        return best


def _lemma_a13(order: float, rate: float, noise: float) -> bool:
    """Whether D_a of the sampled Gaussian is at most 2 a q^2 / z^2, by the conditions of Eq. 33."""
    if noise <= 4 or rate > 1 / 5:
        return False
    k = math.log1p(1 / (rate * (order - 1)))
    first = order <= k * noise**2 / 2 - 2 * math.log(noise)
    below = k + math.log(rate * order) + 1 / (2 * noise**2)
    top = k**2 * noise**2 / 2 - math.log(5) - 2 * math.log(noise)
    return first and (below <= 0 or order * below <= top)
