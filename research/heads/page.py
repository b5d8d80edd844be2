"""Heads and optimizers as a page, from results/heads.json."""

from __future__ import annotations

from typing import Any

from research.records.page import markdown, percent, with_interval

Values = dict[str, Any]

INTRODUCTION = """# Heads and optimizers, compared

What else can be done with a budget than DP-SGD on the presets' linear head? Every row below was trained through
`discreet.Private` at the same certified epsilon (delta 1e-5). Every row tried settings on a split of the training
records, at least four, and the best was then run several times with the operating system's randomness. "Told apart"
compares a row with the first by Welch's t test at the 5 % level, without a correction for the number of rows.
"""


def page(held: Values) -> str:
    parts = [INTRODUCTION]
    parts += [_section(one) for one in held["problems"].values()]
    versions = ", ".join(f"{name} {version}" for name, version in held.get("versions", {}).items())
    repeat = f"    {held.get('command', '')}\n\nwrote `results/heads.json` ({versions})."
    return "\n\n".join([*parts, "## Provenance", repeat]) + "\n"


def _section(one: Values) -> str:
    known = " + ".join(one["features"]) or "the records as they are"
    head = f"## {one['data']} at epsilon {one['epsilon']:g}: `{one['model']}` on {known}"
    if "batch" in one:
        head += f"\n\n{one['steps']} steps of batch {one['batch']} where a row says nothing else."
    heads = [
        "way",
        "what it is",
        "settings tried",
        "chosen",
        "certified epsilon",
        "runs",
        "accuracy",
        "told apart",
        "training, CPU seconds",
    ]
    finished = {name: way for name, way in one["ways"].items() if way.get("runs")}
    if not finished:
        return f"{head}\n\nNot measured yet."
    first = next(iter(finished.values()))
    rows = [
        [
            name,
            way["about"],
            str(len(way["trials"])),
            ", ".join(f"{key} {value:.3g}" for key, value in way["chosen"].items()),
            f"{max(run['epsilon'] for run in way['runs']):.3f}",
            str(len(way["runs"])),
            f"{with_interval(way['accuracy'])} %",
            "" if way is first else _apart(first, way),
            f"{sum(run['cpu_seconds'] for run in way['runs']) / len(way['runs']):.0f}",
        ]
        for name, way in finished.items()
    ]
    return f"{head}\n\n{markdown(heads, rows)}{_unfinished(one, first)}"


def _unfinished(one: Values, first: Values) -> str:
    """Ways that were tried on the split alone."""
    tried = {name: way["trials"] for name, way in one["ways"].items() if way["trials"] and not way["runs"]}
    if not tried:
        return ""
    named = ", ".join(f"{name} {_best(trials)} %" for name, trials in tried.items())
    return f"\n\nTried on the split only, where the first row reached {_best(first['trials'])} %: {named}."


def _best(trials: list[Values]) -> str:
    return percent(max(trial["accuracy"] for trial in trials))


def _apart(first: Values, other: Values) -> str:
    from scipy.stats import ttest_ind

    one, two = ([run["accuracy"] for run in way["runs"]] for way in (first, other))
    if min(len(one), len(two)) < 2:
        return "too few runs"
    better = sum(two) / len(two) > sum(one) / len(one)
    return ("better" if better else "worse") if ttest_ind(one, two, equal_var=False).pvalue < 0.05 else "no"
