"""Draws that all records of a micro-batch share.

`sign = 2 * torch.randint(0, 2, (1,)) - 1` is one number for all records of a micro-batch, and another in the next one.
If a batch is cut into several micro-batches, leaving one record out moves others across the cuts, where they meet
another sign: the sum moves by more than one clip. A dropout mask on a weight does the same, and so does one call on
records that draws fewer numbers than a row for each, such as attention with dropout between public queries and keys.
"""

from __future__ import annotations

from discreet.engine.proof.lineage import GENERATOR_STATE, PUBLIC, Origin


def shared_draw(made: Origin) -> Origin | None:
    """A call, on the way to losses or gradients, that gives one draw to several records; None if there is none.

    Guarantee: if None, every draw that reaches `made` was read by rows, each of which went to one record; and a draw
    that a call on records made by itself had as many entries for each record, for every number of records in its proof.
    """
    ahead, seen = [made], set[int]()
    while ahead:
        origin = ahead.pop()
        if id(origin) in seen or origin.output == GENERATOR_STATE:
            continue
        seen.add(id(origin))
        for parent in origin.parents:
            if parent.output == GENERATOR_STATE and origin.rows is not None and origin.lineage in origin.rows.shared:
                return origin
            if parent.lineage is not PUBLIC:
                ahead.append(parent)
            elif drawn_in(parent) - _read_by_rows(origin, parent):
                return origin
    return None


def drawn_in(public: Origin) -> set[int]:
    """The draws that the values of a public tensor depend on. What a generator drew before them is another matter."""
    found, ahead, seen = set[int](), [public], set[int]()
    while ahead:
        origin = ahead.pop()
        if origin.output == GENERATOR_STATE:
            found.add(origin.digest)
        elif id(origin) not in seen:
            seen.add(id(origin))
            # what was made of records by their sizes alone holds none of their draws
            ahead += [one for one in origin.parents if one.lineage is PUBLIC or one.output == GENERATOR_STATE]
    return found


def _read_by_rows(*origins: Origin) -> set[int]:
    return {draw for origin in origins if origin.rows is not None for way in origin.rows.used for draw, _ in way}
