"""The noise multiplier, number of steps or batch size that a budget allows.

Every result was certified itself, so its epsilon is at most the budget. More noise must not cost more; more steps or a
larger batch must not cost less.
"""

import math
from collections.abc import Callable

from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge, Claim
from discreet.core import check
from discreet.core.bisection import least_whole
from discreet.core.relation import Neighbouring

_LEFT = 0.004  # the share of the budget that may be left over
_AIM = 0.999  # interpolation aims here: inside the budget, and well inside what may be left


def calibrate_noise(
    charge_of_noise: Callable[[float], Charge], *, epsilon: float, delta: float, relation: Neighbouring
) -> float:
    """Return the smallest noise whose certified epsilon is within the budget; at most 0.5 % of it stays unused.

    >>> from discreet.accounting.events import Gaussian
    >>> budget = {"epsilon": 4.37718, "delta": 1e-5, "relation": Neighbouring.ADD_REMOVE}
    >>> 1.0 <= calibrate_noise(lambda z: Charge.of(Gaussian(z)), **budget) <= 1.01
    True
    """
    _check_budget(epsilon, delta)
    return _least_noise(lambda noise: certify(charge_of_noise(noise), delta=delta, relation=relation).epsilon, epsilon)


def calibrate_claim(claim_of_noise: Callable[[float], Claim | None], *, epsilon: float, delta: float) -> float:
    """Return the smallest noise whose CLAIMED epsilon is within the budget. This proves nothing."""
    _check_budget(epsilon, delta)

    def spent(noise: float) -> float:
        claim = claim_of_noise(noise)
        claimed = None if claim is None else claim.epsilon(delta)
        if claimed is None:
            remedy = "calibrate to the certificate, or give the noise"
            check.refuse("a run that the paper's theorem covers", "one about which it claims nothing", remedy)
        return claimed

    return _least_noise(spent, epsilon)


def _least_noise(spent: Callable[[float], float], epsilon: float) -> float:
    low, high = _bracket(spent, epsilon)
    while high[1] < (1 - _LEFT) * epsilon:
        noise = _between(low, high, _AIM * epsilon)
        if not low[0] < noise < high[0]:
            break
        found = (noise, spent(noise))
        low, high = (found, high) if found[1] > epsilon else (low, found)
    return high[0]


def calibrate_steps(
    charge_of_steps: Callable[[int], Charge], *, epsilon: float, delta: float, relation: Neighbouring
) -> int:
    """Return the largest number of steps whose certified epsilon is within the budget; 0 if there is none."""
    fits = _within(charge_of_steps, epsilon, delta, relation)
    most = 1
    while fits(most):
        most *= 2
        remedy = "a budget that no number of steps exceeds needs no calibration"
        check.require(most < 2**40, "a budget that steps can exhaust", f"epsilon={epsilon}", remedy)
    return least_whole(lambda steps: not fits(steps), most // 2 + 1, most) - 1


def calibrate_batch(
    charge_of_batch: Callable[[int], Charge], *, largest: int, epsilon: float, delta: float, relation: Neighbouring
) -> int:
    """Return the largest batch up to `largest` whose certified epsilon is within the budget."""
    fits = _within(charge_of_batch, epsilon, delta, relation)
    check.count("the largest batch to consider, at most the public number of records", largest=largest)
    if fits(largest):
        return largest
    remedy = "raise the noise or the budget, or take fewer steps"
    check.require(fits(1), f"a batch within epsilon={epsilon}", "more than that at batch=1", remedy)
    return least_whole(lambda batch: not fits(batch), 2, largest) - 1


def _within(
    charge_of: Callable[[int], Charge], epsilon: float, delta: float, relation: Neighbouring
) -> Callable[[int], bool]:
    _check_budget(epsilon, delta)
    return lambda number: certify(charge_of(number), delta=delta, relation=relation).epsilon <= epsilon


def _check_budget(epsilon: float, delta: float) -> None:
    check.positive("the budget is a positive, finite epsilon", epsilon=epsilon)
    check.inside_unit("delta is the probability that the bound fails", delta=delta)


Tried = tuple[float, float]


def _bracket(spent: Callable[[float], float], epsilon: float) -> tuple[Tried, Tried]:
    """Two noises with their epsilons: one above the budget, one within it."""
    before = (1.0, spent(1.0))
    factor = 0.5 if before[1] <= epsilon else 2.0
    following = before
    while (before[1] <= epsilon) == (following[1] <= epsilon):
        remedy = "the noise must decide the epsilon of the charge; check delta, steps and the sampler"
        got = f"epsilon={following[1]} at noise={following[0]}"
        check.require(2**-60 < following[0] < 2**60, f"a noise that spends epsilon={epsilon}", got, remedy)
        before, following = following, (following[0] * factor, spent(following[0] * factor))
    return (following, before) if factor < 1 else (before, following)


def _between(low: Tried, high: Tried, aim: float) -> float:
    """The noise at which a power law through both ends gives `aim`, or their geometric mean if there is no such law.

    It stays away from the ends, so that the bracket shrinks by a fifth at least every second round.
    """
    middle = math.sqrt(low[0] * high[0])
    if not (math.isfinite(low[1]) and high[1] > 0 and low[1] > high[1]):
        return middle
    share = math.log(low[1] / aim) / math.log(low[1] / high[1])
    ratio = high[0] / low[0]
    if ratio > 1.01:
        share = min(max(share, 0.1), 0.9)
    return low[0] * ratio**share if 0 < share < 1 else middle
