"""No command line shows a traceback: it works, or it is refused in one line."""

from __future__ import annotations

from cli_runner import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.methods import METHODS

WILD = st.one_of(
    st.sampled_from(["0", "1", "-1", "1.3", "1e-5", "600", "nan", "inf", "-inf", "1e400", "", "x", "0x10"]),
    st.sampled_from(["1e-300", "1e300", "9" * 40, "5e-324", "1_000", "½", "--noise", "1,2", "None", "."]),
    st.text(max_size=6),
)
FRACTIONS = st.floats(min_value=1e-4, max_value=1).map(str)
COUNTS = st.integers(min_value=1, max_value=60).map(str)
POSITIVE = st.floats(min_value=0.5, max_value=20).map(str)
SAMPLINGS = ["poisson", "truncated-poisson", "fixed-size", "balls-in-bins", "full-batch", "own-loader"]
USUAL = {
    "--method": st.sampled_from(sorted(METHODS)),
    "--relation": st.sampled_from(["add/remove", "replace-one"]),
    "--sampling": st.sampled_from(SAMPLINGS),
    "--schedule": st.lists(POSITIVE, min_size=1, max_size=60).map(",".join),
    "--schedule-per": st.sampled_from(["step", "epoch"]),
    "--solve": st.sampled_from(["noise", "steps", "batch"]),
    "--ledger": st.sampled_from(["no-such-file", ".", "a\x01b"]),
    "--records": st.integers(min_value=100, max_value=5000).map(str),
    **dict.fromkeys(["--rate", "--delta", "--quantile", "--gamma", "--r", "--adaptive-quantile-rate"], FRACTIONS),
    **dict.fromkeys(["--batch", "--steps", "--epochs", "--cap"], COUNTS),
    **dict.fromkeys(["--noise", "--epsilon", "--clip", "--count-noise", "--no-such-flag"], POSITIVE),
}
STARTS = (
    {"--method": "dp-sgd", "--noise": "1.1", "--rate": "0.01", "--steps": "50", "--delta": "1e-5"},
    {"--method": "psac", "--epsilon": "3", "--records": "500", "--batch": "20", "--epochs": "2", "--delta": "1e-5"},
    {"--method": "adaptive-quantile", "--noise": "2", "--sampling": "full-batch", "--steps": "9", "--delta": "1e-6"},
    {},
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A sound command line with a few flags changed, dropped or added, usually to a sensible value."""
    pairs = dict(draw(st.sampled_from(STARTS)))
    if draw(st.integers(0, 3)) == 3:
        pairs.pop(draw(st.sampled_from(sorted(pairs) or ["none"])), None)
    for flag in draw(st.lists(st.sampled_from(sorted(USUAL)), max_size=3)):
        pairs[flag] = draw(WILD if draw(st.integers(0, 3)) == 3 else USUAL[flag])
    words = [word for pair in pairs.items() for word in pair]
    if draw(st.integers(0, 3)) == 3:
        words.append(draw(st.sampled_from(["--json", "--json", "--help", "x", "-", "--", ""])))
    return [draw(st.sampled_from(["account", "account", "account", "calibrate", "methods", "acount"])), *words]


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(command_lines())
def test_no_command_line_shows_a_traceback(words: list[str]) -> None:
    result = run(*words)
    assert result.code in (0, 2), (words, result.err)
    assert "Traceback" not in result.err + result.out
    if result.code == 0:
        assert result.err == ""
    else:
        assert result.out == ""
        assert result.err.count("\n") == 1
        assert result.err.startswith("Expected ")
        assert "Remedy: " in result.err
