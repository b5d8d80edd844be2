"""No command line shows a traceback: it works, or it is refused in one line."""

from __future__ import annotations

from cli_runner import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discreet.methods import METHODS

NUMBERS = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "1.3", "0.01", "1e-5", "20", "600", "nan", "inf", "-inf", "1e400", "", "x"]
    ),
    st.sampled_from(["1e-300", "1e300", "9" * 40, "5e-324", "0x10", "1_000", "½", "--noise", "1,2", "None"]),
    st.floats(min_value=0.5, max_value=20).map(str),
    st.integers(min_value=1, max_value=500).map(str),
    st.text(max_size=6),
)
VALUES = {
    "--method": st.one_of(st.sampled_from([*METHODS, "dpsgd"]), st.text(max_size=8)),
    "--relation": st.sampled_from(["add/remove", "replace-one", "replace"]),
    "--sampling": st.sampled_from(
        ["poisson", "truncated-poisson", "fixed-size", "balls-in-bins", "full-batch", "own-loader", "x"]
    ),
    "--schedule": st.one_of(st.sampled_from(["constant", "1,0.5", "0", ",", "."]), NUMBERS),
    "--schedule-per": st.sampled_from(["step", "epoch", "year"]),
    "--solve": st.sampled_from(["noise", "steps", "batch", "x"]),
    "--ledger": st.sampled_from(["no-such-file", ".", "", "a\x01b"]),
    **dict.fromkeys(
        [
            "--noise",
            "--epsilon",
            "--delta",
            "--rate",
            "--records",
            "--batch",
            "--steps",
            "--epochs",
            "--cap",
            "--clip",
            "--gamma",
            "--r",
            "--quantile",
            "--count-noise",
            "--adaptive-quantile-rate",
            "--no-such-flag",
        ],
        NUMBERS,
    ),
}
SOUND = {"--method": "dp-sgd", "--noise": "1.1", "--rate": "0.01", "--steps": "50", "--delta": "1e-5"}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Often a sound command line with a few flags changed, dropped or added, sometimes anything."""
    pairs = dict(SOUND) if draw(st.booleans()) else {}
    for flag in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=5)):
        pairs[flag] = draw(VALUES[flag])
    for flag in draw(st.lists(st.sampled_from(sorted(SOUND)), max_size=2)):
        pairs.pop(flag, None)
    words = [word for pair in pairs.items() for word in pair]
    words += draw(st.lists(st.sampled_from(["--json", "--help", "x", "-", "--", ""]), max_size=1))
    return [draw(st.sampled_from(["account", "account", "calibrate", "methods", "acount"])), *words]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
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
