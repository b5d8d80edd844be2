"""Recipes of DP-FTRL by matrix factorisation, and of BandMF."""

from discreet.methods.dp_ftrl.analysis import CorrelatedAnalysis
from discreet.methods.dp_ftrl.correlated_noise import Factorisation, Strategy, Workload
from discreet.stages.clipping import FlatClip
from discreet.stages.participation import CyclicPoisson, FixedBins
from discreet.stages.plan import Recipe


def dp_ftrl(
    clip: float = 1.0,
    bands: int = 16,
    strategy: Strategy = Strategy.BISR,
    momentum: float = 0.0,
    shrinkage: float = 0.0,
    last_rate: float = 1.0,
) -> Recipe:
    """DP-FTRL: noise that is correlated between steps, without amplification; for your own loader or stream too.

    clip       clipping norm of the gradients
    bands      a step uses the noise of bands - 1 earlier steps, which stay in memory; 1 is independent noise
    strategy   how the correlation is chosen; `optimised` uses the length of the run and the next three
    momentum   of the optimizer
    shrinkage  learning rate times weight decay
    last_rate  the learning rate of the last step relative to the first, if it falls linearly

    By default each record joins one step of every epoch, always at the same place. For your own loader:
    `recipe.using(sampling=discreet.FixedOrder(), relation=discreet.Neighbouring.REPLACE_ONE)`.
    """
    noise = Factorisation(Strategy(strategy), bands, Workload(momentum, shrinkage, last_rate))
    return Recipe(
        method="dp-ftrl", bounder=FlatClip(clip), mechanism=noise, sampling=FixedBins(), analysis=CorrelatedAnalysis()
    )


def bandmf(
    clip: float = 1.0, bands: int = 4, momentum: float = 0.0, shrinkage: float = 0.0, last_rate: float = 1.0
) -> Recipe:
    """BandMF: correlated noise with amplification by cyclic Poisson sampling.

    clip       clipping norm of the gradients
    bands      the most bands; a run uses at most records / batch of them, and samples as many parts in turn
    momentum   of the optimizer, for which the coefficients are optimised
    shrinkage  learning rate times weight decay, likewise
    last_rate  the learning rate of the last step relative to the first, if it falls linearly
    """
    noise = Factorisation(Strategy.OPTIMISED, bands, Workload(momentum, shrinkage, last_rate))
    return Recipe(
        method="bandmf",
        bounder=FlatClip(clip),
        mechanism=noise,
        sampling=CyclicPoisson(),
        analysis=CorrelatedAnalysis(),
    )
