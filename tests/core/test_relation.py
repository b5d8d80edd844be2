"""The relation: two members, whose text is part of every certificate and ledger."""

from __future__ import annotations

import pickle

import pytest

from discreet.core.relation import Neighbouring


def test_the_members_and_their_text() -> None:
    assert {member.name: str(member) for member in Neighbouring} == {
        "ADD_REMOVE": "add/remove",
        "REPLACE_ONE": "replace-one",
    }


@pytest.mark.parametrize("member", list(Neighbouring))
def test_text_and_pickle_round_trip(member: Neighbouring) -> None:
    assert Neighbouring(str(member)) is member
    assert Neighbouring(member) is member
    assert pickle.loads(pickle.dumps(member)) is member
    assert f"{member}" == member.value


@pytest.mark.parametrize("text", ["", "add", "ADD_REMOVE", "zero-out", None])
def test_other_text_is_no_relation(text: object) -> None:
    with pytest.raises(ValueError, match="not a valid"):
        Neighbouring(text)
