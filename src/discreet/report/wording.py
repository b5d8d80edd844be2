"""The page's sentences and its numbers as text."""

from __future__ import annotations

import math
from typing import final

from discreet.core.randomness import SEEDED
from discreet.runs.comparison.estimates import CONFIDENCE, Estimate
from discreet.runs.comparison.values import Comparison, Entry
from discreet.stages.delta import delta_warning
from discreet.training import spending

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(value: float) -> str:
    """
    >>> percent(0.9561)
    '95.6%'
    """
    return f"{value * 100:.1f}%"


def points(value: float) -> str:
    """A difference of two percentages."""
    return f"{value * 100:.1f}"


def half(accuracy: Estimate | None) -> str:
    return "" if accuracy is None or accuracy.half is None else f"± {points(accuracy.half)}"


def error(accuracy: Estimate | None) -> str:
    """The standard error of the mean, and over how many runs."""
    if accuracy is None:
        return ""
    if accuracy.error is None:
        return "one run, no interval"
    return f"s.e. {accuracy.error * 100:.2f}, {counted(accuracy.count, 'run')}"


def epsilon(value: float | None, missing: str = "–") -> str:
    """Rounded up, so that the page never shows less than was proven."""
    return missing if value is None else spending.format_epsilon(value)


def multiplier(noise: float) -> str:
    """
    >>> multiplier(1.09562), multiplier(14622.9)
    ('1.096', '14,623')
    """
    return f"{noise:.3f}" if noise < 1000 else f"{noise:,.0f}"


def power(value: float) -> str:
    """
    >>> power(1e-5), power(2.5e-6), power(0.01)
    ('10⁻⁵', '2.5 × 10⁻⁶', '0.01')
    """
    if value >= 1e-3:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-12)
    mantissa = f"{value / 10.0**exponent:.3g}"
    raised = "10" + str(exponent).translate(_RAISED)
    return raised if mantissa == "1" else f"{mantissa} × {raised}"


def counted(count: int, noun: str) -> str:
    """
    >>> counted(6, "method"), counted(1, "run"), counted(18, "run")
    ('six methods', 'one run', '18 runs')
    """
    number = _SMALL[count] if count < len(_SMALL) else f"{count:,}"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def listed(names: list[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def summary(entry: Entry) -> str:
    """The recipe's first line, without the marks of code."""
    return entry.summary.replace("`", "")


def failures(entry: Entry) -> list[str]:
    """One line for each different reason."""
    reasons: dict[str, list[int | None]] = {}
    for failure in entry.failures:
        reasons.setdefault(failure.reason, []).append(failure.seed)
    return [f"{_which(seeds)} failed: {reason}" for reason, seeds in reasons.items()]


def _which(seeds: list[int | None]) -> str:
    known = [str(seed) for seed in seeds if seed is not None]
    if len(known) < len(seeds):
        return counted(len(seeds), "run")
    return f"seed {known[0]}" if len(known) == 1 else f"seeds {listed(known)}"


@final
class Words:
    """The sentences of one page."""

    def __init__(self, comparison: Comparison) -> None:
        self._of = comparison

    @property
    def title(self) -> str:
        return f"Private training on {self._of.data}, at {counted(len(self._of.stages), 'budget')}"

    @property
    def budget(self) -> str:
        return f"ε\u00a0≤\u00a0{self._of.epsilon:g}, δ\u00a0=\u00a0{power(self._of.delta)}"

    @property
    def lead(self) -> str:
        """What was compared, in one sentence."""
        of = self._of
        each = f"{of.repeats} seeds each" if of.seeds is not None else f"{of.repeats} runs each"
        if of.repeats == 1:
            each = "one run each"
        many = counted(len(of.entries), "method")
        return (
            f"{many.capitalize()} trained {of.model} ({of.parameters:,} parameters) on {of.records:,} "
            f"records of {of.data}, {each}, and every run was held to the same certified privacy budget: "
            f"{self.budget} ({of.relation}).{self._further}"
        )

    @property
    def _further(self) -> str:
        """The budgets beside the ranking's."""
        others = [f"{stage.epsilon:g}" for stage in self._of.others]
        return f" The frontier below adds runs at ε\u00a0≤\u00a0{listed(others)}." if others else ""

    @property
    def best(self) -> str:
        accuracy = None if self._of.best is None else self._of.best.accuracy
        return "–" if accuracy is None else percent(accuracy.mean)

    @property
    def best_half(self) -> str:
        return half(None if self._of.best is None else self._of.best.accuracy)

    @property
    def best_name(self) -> str:
        return "no run finished" if self._of.best is None else self._of.best.name

    @property
    def told_apart(self) -> str:
        """Whether the ranking's first place means anything."""
        of = self._of
        if of.best is None or len(of.finished) < 2:
            return ""
        near = [entry.name for entry in of.not_told_apart]
        if of.repeats == 1:
            return "One run each: differences may be chance. Give more seeds for intervals."
        if not near:
            return "Its interval lies above all others."
        if len(near) == len(of.finished) - 1 > 2:
            return "Its interval overlaps with every other one: these runs do not tell the methods apart."
        return f"Its interval overlaps with {listed(near)}: these runs do not tell them apart."

    @property
    def epsilon(self) -> str:
        """The largest certified epsilon of all runs."""
        return epsilon(max((e.epsilon for e in self._of.finished if e.epsilon is not None), default=None))

    @property
    def accountants(self) -> str:
        return ", ".join(sorted({run.accountant for e in self._of.entries for run in e.runs})) or "none"

    @property
    def runs(self) -> str:
        done = sum(len(entry.runs) for entry in self._of.entries)
        return f"{done} of {done + sum(len(entry.failures) for entry in self._of.entries)}"

    @property
    def interval(self) -> str:
        """What the ± is, and what it is not."""
        of = self._of
        best = None if of.best is None else of.best.accuracy
        text = (
            f"± is the half width of the {CONFIDENCE:.0%} t interval of the mean over runs, drawn as a bar; "
            "dots are single runs."
        )
        if best is None or of.test_records < 1:
            return text
        sampling = 1.96 * math.sqrt(max(best.mean * (1 - best.mean), 0.0) / of.test_records)
        return (
            f"{text} It does not include the chance in the choice of the {of.test_records:,} test records, "
            f"about ± {points(sampling)} for the best row, which all rows share."
        )

    @property
    def factor(self) -> str:
        """e^epsilon, rounded up."""
        return f"{math.ceil(math.exp(min(self._of.epsilon, 50.0))):,}"

    @property
    def attack(self) -> str:
        """What any attacker can do at best: power at a false-alarm rate of 1 %, from the definition of DP."""
        of, rate = self._of, 0.01
        grow = math.exp(min(of.epsilon, 50.0))
        power_bound = min(grow * rate + of.delta, 1 - (1 - of.delta - rate) / grow)
        return f"{math.ceil(power_bound * 1000) / 10:g}%"

    @property
    def randomness(self) -> str:
        if self._of.seeded:
            seeds = self._of.seeds
            which = "" if seeds is None else f" (seeds {', '.join(str(seed) for seed in seeds)})"
            return (
                f"Seeded: not private{which}. Whoever knows a seed can recompute the noise. These runs are "
                "repeatable experiments; train without seeds for a model that you publish."
            )
        return "Keyed by the operating system: no seed, nothing that could be used to recompute the noise."

    @property
    def guarantee(self) -> str:
        """What every run has, or would have without its seed."""
        of = self._of
        each = (
            "each run"
            if not of.others
            else "each run of the ranking, and the budget of its column for others"
        )
        text = (
            f"({of.epsilon:g}, {power(of.delta)})-differential privacy for {each}; accountant: "
            f"{self.accountants}; sampling: {of.sampling.capitalize()}."
        )
        if of.seeded:
            text += " It holds for the same run without a seed; see Randomness."
        return f"{text} {self.warning}".rstrip()

    @property
    def warning(self) -> str:
        """Beside every epsilon where delta is large for the number of records."""
        text = delta_warning(self._of.delta, self._of.records)
        return f"Warning: {text}." if text else ""

    @property
    def unit(self) -> str:
        """What is protected."""
        if self._of.relation == "add/remove":
            return "One training record: whether it is in the data at all (add/remove)."
        return "One training record: its content, the number of records being public (replace-one)."

    @property
    def together(self) -> str:
        """What releasing everything on the page costs."""
        of = self._of
        count = sum(len(entry.runs) for stage in of.stages for entry in stage.entries)
        at = f"at δ\u00a0=\u00a0{power(of.delta)}"
        each = f"Each run on its own has the certified ε of its row {at}."
        if of.together is None or count < 2:
            return each
        whole = epsilon(of.together)
        seeded = f" ({SEEDED})" if of.seeded else ""
        composed = f"All {count} runs together, composed, cost ε\u00a0=\u00a0{whole} {at}{seeded}."
        public = (
            f" The records of {of.data} are published, so nobody is exposed by that; on private data it is "
            "the price of showing this page."
        )
        private = " That is the price of showing this page: to release one model, train one."
        return f"{each} {composed}{public if of.public else private}"

    @property
    def tuning(self) -> str:
        """Who chose the hyper-parameters, and on what."""
        given = [entry.name for entry in self._of.entries if entry.given]
        usual = "Hyper-parameters were chosen on public data, by a search or as defaults: not charged."
        chosen = self._searched if self._of.tuned else usual
        if not given:
            return chosen
        rest = "" if len(given) == len(self._of.entries) else f" For all other rows: {chosen}"
        return (
            f"The settings of {listed(given)} were given by whoever ran this. If they were found by trying "
            f"them on these training records, those trials cost privacy that is not counted here.{rest}"
        )

    @property
    def _searched(self) -> str:
        """The search on stand-in data, in numbers."""
        tuned = self._of.tuned
        assert tuned is not None
        return (
            f"Learning rate and clip were searched on {tuned.data}, declared public: {tuned.trials} trials of "
            f"{tuned.model} on {tuned.records:,} records, scored on {tuned.held_out:,} others. Not charged: "
            f"{'these' if tuned.data == self._of.data else 'those'} records are public"
            + ("." if tuned.data == self._of.data else f", and no trial saw those of {self._of.data}.")
        )

    @property
    def assumptions(self) -> list[str]:
        """What the certificates rest on, as sentences."""
        said = {text for entry in self._of.entries for run in entry.runs for text in run.assumptions}
        return [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in sorted(said)]

    @property
    def claims(self) -> bool:
        return any(entry.claimed is not None for entry in self._of.entries)

    @property
    def delta(self) -> str:
        return power(self._of.delta)
