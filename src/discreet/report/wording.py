"""Numbers as text, and the sentences that several outputs share or that depend on the values."""

import math

from discreet.core.randomness import SEEDED
from discreet.runs.audit_rows import AuditRow
from discreet.runs.comparison.values import CONFIDENCE, Comparison, Estimate, MethodResult
from discreet.stages.delta import delta_warning
from discreet.training import spending

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


_DATA = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar10": "CIFAR-10", "adult": "Adult"}
_DATA |= {"digits": "handwritten digits", "reviews": "film reviews"}
_SETTINGS = {"dims": "dimensions", "rate": "sampling rate", "batch": "batch size", "noise": "noise multiplier"}


def data_called(name: str) -> str:
    """A dataset as a reader knows it; your own file by its name.

    >>> data_called("fashion-mnist"), data_called("visits.csv")
    ('Fashion-MNIST', 'visits.csv')
    """
    return _DATA.get(name, name)


def percent(value: float) -> str:
    return f"{points(value)}%"


def points(value: float) -> str:
    return f"{value * 100:.1f}"


def half(accuracy: Estimate | None) -> str:
    return "" if accuracy is None or accuracy.half is None else f"± {points(accuracy.half)}"


def error(accuracy: Estimate | None) -> str:
    if accuracy is None:
        return ""
    if accuracy.error is None:
        return "one run, no interval"
    return f"s.e. {accuracy.error * 100:.2f}, {counted(accuracy.count, 'run')}"


def epsilon(value: float | None, missing: str = "–") -> str:
    """Rounded up, so that the page never shows less than is certified."""
    return missing if value is None else spending.format_epsilon(value)


def rounded_down(value: float | None) -> str:
    if value is None:
        return "–"
    return "infinite" if math.isinf(value) else f"{math.floor(value * 100) / 100:.2f}"


def sort_value(value: float | None) -> float:
    """Where a number is sorted: missing ones first, infinite ones last."""
    return -1.0 if value is None else min(value, 1e300)


def audit_settings(row: AuditRow) -> str:
    """The settings of an attack in words."""
    return ", ".join(_setting(name, value) for name, value in row.parameters.items())


def _setting(name: str, value: object) -> str:
    """
    >>> _setting("trials", 4e6), _setting("game", "one step"), _setting("feedback_clip", 0.5), _setting("delta", 1e-5)
    ('4,000,000 trials', 'one step', 'feedback clip 0.5', 'delta 10⁻⁵')
    """
    if name == "game":
        return str(value)
    words = _SETTINGS.get(name, name.replace("_", " "))
    if not isinstance(value, (int, float)):
        return f"{words} {value}"
    if name in ("trials", "steps", "records", "canaries"):
        return f"{value:,.0f} {words if value != 1 else words.removesuffix('s')}"
    return f"{words} {power(value) if 0 < value < 1e-3 else f'{value:g}'}"


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


def failures(entry: MethodResult) -> list[str]:
    """One line for each distinct reason."""
    reasons: dict[str, list[int | None]] = {}
    for failure in entry.failures:
        reasons.setdefault(failure.reason, []).append(failure.seed)
    return [f"{_which(seeds)} failed: {reason}" for reason, seeds in reasons.items()]


def _which(seeds: list[int | None]) -> str:
    known = [str(seed) for seed in seeds if seed is not None]
    if len(known) < len(seeds):
        return counted(len(seeds), "run")
    return f"seed {known[0]}" if len(known) == 1 else f"seeds {listed(known)}"


def significance(of: Comparison) -> str:
    """Whether the ranking's first place means anything."""
    if of.best is None or len(of.finished) < 2:
        return ""
    near = [entry.name for entry in of.close_to_best]
    if of.repeats == 1:
        return "One run each: differences may be due to chance. Use more seeds to get intervals."
    test = "a t test of the runs" if of.seeds is None else "a paired t test over the seeds"
    if not near:
        return f"By {test} it is better than all others."
    if len(near) == len(of.finished) - 1 > 2:
        return f"By {test} it cannot be told apart from any other."
    return f"By {test} it cannot be told apart from {listed(near)}."


def interval(of: Comparison) -> str:
    """What the ± includes and what it leaves out."""
    width = f"half the width of the {CONFIDENCE:.0%} t interval of the mean over runs"
    text = f"± is {width}, drawn as a bar; dots are single runs."
    best = None if of.best is None else of.best.accuracy
    if best is None or of.test_records < 1:
        return text
    sampling = 1.96 * math.sqrt(max(best.mean * (1 - best.mean), 0.0) / of.test_records)
    return (
        f"{text} It does not include the sampling error of the {of.test_records:,} test records, about "
        f"± {points(sampling)} for the best row, which all rows share."
    )


def likelihood_factor(of: Comparison) -> str:
    """e^epsilon, rounded up."""
    return f"{math.ceil(math.exp(min(of.epsilon, 50.0))):,}"


def attack_power(of: Comparison) -> str:
    """The power of any attack at a false-positive rate of 1 %, at most, by the definition of DP."""
    rate, grow = 0.01, math.exp(min(of.epsilon, 50.0))
    bound = min(grow * rate + of.delta, 1 - (1 - of.delta - rate) / grow)
    return f"{math.ceil(bound * 1000) / 10:g}%"


def together(of: Comparison) -> str:
    """What publishing everything on the page costs."""
    count = sum(len(entry.runs) for budget in of.budgets for entry in budget.entries)
    at = f"at δ\u00a0=\u00a0{power(of.delta)}"
    each = f"Each run on its own has the certified ε of its row {at}."
    if of.together is None or count < 2:
        return each
    seeded = f" ({SEEDED})" if of.seeded else ""
    composed = f"All {count} runs together cost ε\u00a0=\u00a0{epsilon(of.together)} {at}, by composition{seeded}."
    cost = "the cost of publishing this page."
    public = f"The records of {of.data} are published, so this exposes nobody; on private data it would be {cost}"
    return f"{each} {composed} {public if of.public else f'That is {cost} To release one model, train one.'}"


def warning(of: Comparison) -> str:
    """Beside every epsilon if delta is large for the number of records."""
    text = delta_warning(of.delta, of.records)
    return f"Warning: {text}." if text else ""


def tuning(of: Comparison) -> str:
    """Who chose the hyper-parameters, and on what data."""
    given = [entry.name for entry in of.entries if entry.given]
    chosen = "Hyper-parameters were chosen on public data, by a search or as defaults. They are not charged."
    if of.tuned is not None:
        tuned, same = of.tuned, of.tuned.data == of.data
        chosen = (
            f"Learning rate and clipping norm were searched on {tuned.data}, declared public: {tuned.trials} trials "
            f"of {tuned.model} on {tuned.records:,} records, scored on {tuned.held_out:,} others. They are not "
            f"charged: {'these' if same else 'those'} records are public"
            + ("." if same else f", and no trial used those of {of.data}.")
        )
    if not given:
        return chosen
    rest = "" if len(given) == len(of.entries) else f" For all other rows: {chosen}"
    return (
        f"The user gave the settings of {listed(given)}. If they were found by trials on these training records, "
        f"those trials cost privacy that is not counted here.{rest}"
    )


def assumptions(of: Comparison) -> list[str]:
    said = {text for entry in of.entries for run in entry.runs for text in run.assumptions}
    return [f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in sorted(said)]
