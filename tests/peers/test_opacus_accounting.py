"""Our certificates beside Opacus's RDP and PRV accountants on 200 random settings.

PRV brackets the truth: it gives a lower and an upper bound. Ours must not fall below the lower one, and must
lie within 1 % of the tightest upper bound of both, up to the width that PRV itself was asked for.
"""

import math
import warnings

import numpy as np
import pytest

from discreet.accounting.accountants import certify
from discreet.accounting.charges import Charge
from discreet.accounting.events import Gaussian, PoissonSampled
from discreet.core.relation import Neighbouring

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: nothing to compare with")

Setting = tuple[float, float, int, float]


def settings(count: int) -> list[Setting]:
    """(rate, noise, steps, delta), the same in every run."""
    rng = np.random.default_rng(20240)
    return [
        (
            float(np.exp(rng.uniform(math.log(1e-3), math.log(0.25)))),
            float(rng.uniform(0.6, 4.0)),
            int(np.exp(rng.uniform(0, math.log(3000)))),
            float(10 ** rng.uniform(-7, -4)),
        )
        for _ in range(count)
    ]


def prv(setting: Setting, width: float) -> tuple[float, float]:
    """The lower and the upper bound of Opacus's PRV accountant."""
    rate, noise, steps, delta = setting
    accountant = opacus.accountants.PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variable = accountant._get_dprv(eps_error=width, delta_error=delta / 1000)
        low, _, high = variable.compute_epsilon(delta, delta / 1000, width)
    return float(low), float(high)


def rdp(setting: Setting) -> float:
    """epsilon by Opacus's RDP accountant."""
    rate, noise, steps, delta = setting
    accountant = opacus.accountants.RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def compare(setting: Setting) -> float:
    """Check one setting; the ratio of ours to the truth that PRV brackets, 1 where both are nothing."""
    rate, noise, steps, delta = setting
    ours = certify(
        Charge.of(PoissonSampled(rate, Gaussian(noise)), steps), delta=delta, relation=Neighbouring.ADD_REMOVE
    ).epsilon
    width = max(1e-3, 0.002 * ours)
    low, high = prv(setting, width)
    assert ours >= low - 1e-9, (setting, ours, low)
    assert ours <= 1.01 * min(high, rdp(setting)) + 1e-9, (setting, ours, high, rdp(setting))
    assert ours <= 1.01 * low + 2 * 1.01 * width + 1e-9, (setting, ours, low)
    return ours / low if low > 0 else 1.0


@pytest.mark.parametrize("setting", settings(200)[:24], ids=lambda s: f"q={s[0]:.4f},z={s[1]:.2f},T={s[2]}")
def test_beside_opacus(setting: Setting) -> None:
    compare(setting)


@pytest.mark.slow
def test_beside_opacus_everywhere() -> None:
    ratios = [compare(setting) for setting in settings(200)]
    assert len(ratios) == 200


def test_an_understated_noise_is_noticed() -> None:
    """Negative control: charging 2 % more noise than was drawn falls below PRV's lower bound."""
    setting = (0.02, 1.0, 1000, 1e-5)
    charge = Charge.of(PoissonSampled(0.02, Gaussian(1.02)), 1000)
    wrong = certify(charge, delta=1e-5, relation=Neighbouring.ADD_REMOVE).epsilon
    assert wrong < prv(setting, 0.005)[0]
