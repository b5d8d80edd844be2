"""How large delta may be beside the public number of records."""

from __future__ import annotations

from discreet.core import check


def check_delta(delta: float, records: int | None, *, accepted: bool) -> None:
    """Refuse a delta that protects no single record, unless the user accepts it; without records nothing is known."""
    check.inside_unit("delta is the probability that the bound fails, e.g. 1e-5", delta=delta)
    if records is None or accepted:
        return
    check.require(
        delta < 1 / records,
        f"delta < 1/records = {1 / records:.3g}",
        f"delta={delta:g}",
        f"choose at most 1/(10 records) = {0.1 / records:.3g}, for publishing one record in full has a delta of "
        "1/records; accept_large_delta=True (--accept-delta) if you know why a larger one is enough",
    )


def delta_warning(delta: float, records: int | None) -> str:
    """What to say beside an epsilon at this delta; empty where it is at most 1/(10 records).

    >>> delta_warning(1e-5, 10_000)
    ''
    """
    if records is None or delta <= 0.1 / records:
        return ""
    if delta >= 1 / records:
        return (
            f"delta {delta:g} is at least 1/records = {1 / records:.3g}: a mechanism that publishes a record in full "
            "can have it, so that no single record is protected"
        )
    return (
        f"delta {delta:g} is above 1/(10 records) = {0.1 / records:.3g}: that a record is published in full is hardly "
        "excluded; use at most this"
    )
