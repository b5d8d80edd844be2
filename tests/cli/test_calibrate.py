from __future__ import annotations

import pytest
from cli_runner import refused, replaced, run

RUN = ("--method", "dp-sgd", "--epsilon", "3", "--records", "60000", "--batch", "1024", "--epochs", "40")
RUN += ("--delta", "1e-5")


def test_the_least_noise_for_a_budget() -> None:
    answer = run("calibrate", *RUN, "--json").json
    assert set(answer) == {"method", "certified", "claimed", "noise", "warnings"}  # delta > 1/(10 records)
    assert 3 * 0.995 <= answer["certified"]["epsilon"] <= 3
    words = replaced(RUN, epsilon=None, noise=repr(answer["noise"]))
    assert run("account", *words, "--json").json["certified"] == answer["certified"]
    shown = run("calibrate", *RUN)
    assert shown.code == 0
    noise = next(line for line in shown.out.splitlines() if line.strip().startswith("noise")).split()[1]
    assert answer["noise"] <= float(noise) <= answer["noise"] + 1e-6  # what is printed is safe to copy


def test_the_most_steps_for_a_budget() -> None:
    words = replaced(RUN, epochs=None, noise="1.1")
    answer = run("calibrate", *words, "--solve", "steps", "--json").json
    assert answer["noise"] == 1.1
    steps = answer["steps"]
    account = replaced(RUN, epochs=None, epsilon=None, noise="1.1")
    within = run("account", *account, "--steps", steps, "--json").json["certified"]["epsilon"]
    more = run("account", *account, "--steps", int(steps * 1.02) + 1, "--json").json["certified"]["epsilon"]
    assert within == answer["certified"]["epsilon"] <= 3 < more


def test_the_largest_batch_for_a_budget() -> None:
    words = replaced(RUN, batch=None, epochs=None, steps="1000", noise="1.1")
    answer = run("calibrate", *words, "--solve", "batch", "--json").json
    account = replaced(RUN, epsilon=None, epochs=None, steps="1000", noise="1.1", batch=str(answer["batch"]))
    assert run("account", *account, "--json").json["certified"] == answer["certified"]
    assert answer["certified"]["epsilon"] <= 3
    larger = replaced(tuple(account), batch=str(int(answer["batch"] * 1.02) + 1))
    assert run("account", *larger, "--json").json["certified"]["epsilon"] > 3


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"noise": "1"}, ["--noise", "--epsilon"]),
        ({"epsilon": None}, ["--epsilon"]),
        ({"epsilon": "0"}, ["epsilon > 0"]),
        ({"epsilon": "-3"}, ["epsilon > 0"]),
        ({"epsilon": "inf"}, ["epsilon"]),
        ({"delta": "0"}, ["delta"]),
        ({"solve": "steps"}, ["--epochs", "drop it"]),
        ({"solve": "steps", "epochs": None}, ["--noise"]),
        ({"solve": "batch"}, ["--batch", "drop it"]),
        ({"solve": "batch", "batch": None, "records": None, "noise": "1"}, ["--records"]),
        ({"solve": "rate"}, ["--solve"]),
        ({"solve": "steps", "epochs": None, "noise": "0.01"}, []),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_bad_input_is_one_line(changes: dict[str, str | None], parts: list[str]) -> None:
    refused(run("calibrate", *replaced(RUN, **changes)), *parts)


def test_the_noise_that_a_paper_claims_to_be_enough() -> None:
    dense = ("--projection", "dense", "--widths", "10,10")
    words = (*replaced(RUN, method="d2p2-sgd", epochs="2"), *dense, "--calibrate-to-claim")
    answer = run("calibrate", *words, "--json").json
    assert 3 * 0.99 <= answer["claimed"]["epsilon"] <= 3  # what was asked for
    assert answer["certified"]["epsilon"] > 1.5 * 3  # and what it is worth

    refused(run("calibrate", *RUN, "--calibrate-to-claim"), "claims nothing", "calibrate to the certificate")
    steps = replaced(RUN, epochs=None, noise="1")
    refused(run("calibrate", *steps, "--calibrate-to-claim", "--solve", "steps"), "--solve steps")
