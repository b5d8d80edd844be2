"""The runs of a proof: their arguments, and what moves between them."""

from __future__ import annotations

import pytest
import torch

from discreet.engine.proof.forms.call_forms import Reading, provable
from discreet.engine.proof.lineage import Origin
from discreet.engine.proof.movement import put, stays
from discreet.engine.trace.capture import RecordAxis


def test_runs_of_a_proof_share_no_list() -> None:
    """A function may change the lists that it is given."""
    inputs = torch.randn(7, 20)
    reading = Reading(7)
    reading.read_call(([inputs, inputs], [14, 3]), {"dim": (0, 1)}, lambda tensor: Origin(RecordAxis(0), 1))
    call = provable(torch.cat, ([inputs, inputs], [14, 3]), {"dim": (0, 1)}, reading, exact=False)
    (first, sizes), named = call.rebuild([1, 2], 5)
    assert (first, sizes, named) == ([1, 2], [10, 3], {"dim": (0, 1)})
    sizes.clear()
    assert call.rebuild([3, 4], 5) == (([3, 4], [10, 3]), {"dim": (0, 1)})
    assert call.rebuild([3, 4], 67) == (([3, 4], [134, 3]), {"dim": (0, 1)})


@pytest.mark.parametrize("minor", [False, True])
def test_what_stays_is_what_did_not_change(minor: bool) -> None:
    axis = RecordAxis(1, minor=minor)
    old = torch.randn(3, 10, 2)
    half = torch.tensor([True, False, True, False, False])
    new = put(old, torch.randn(3, 10, 2), axis, half)
    assert stays(axis, old, new, half)
    assert not stays(RecordAxis(1, minor=not minor), old, new, half)
    assert not stays(axis, old, new, ~half)
    new[0, 2 if minor else 4] = float("nan")  # of half
    assert stays(axis, old, new, half)
    kept = new.clone()
    kept[2, 1 if minor else 3, 1] += 1e-6
    assert not stays(axis, old, kept, half)
