"""How large delta may be beside the public number of records."""

from discreet.core import check


def check_delta(delta: float, records: int | None, *, accepted: bool) -> None:
    """Refuse a delta of 1/records or more, unless `accepted`. Nothing is checked if `records` is unknown."""
    check.inside_unit("choose delta of at most 1/(10 * records), e.g. 1e-5", delta=delta)
    if records is None or accepted or delta < 1 / records:
        return
    remedy = (
        f"choose at most 1/(10 records) = {0.1 / records:.3g}, because publishing a random record has delta 1/records; "
        "to use a larger delta anyway, pass accept_large_delta=True (--accept-delta)"
    )
    check.refuse(f"delta < 1/records = {1 / records:.3g}", f"delta={delta:g}", remedy)


def delta_warning(delta: float, records: int | None) -> str:
    """The warning to print next to an epsilon at this delta; empty if delta is at most 1/(10 records).

    >>> delta_warning(1e-5, 10_000)
    ''
    """
    if records is None or delta <= 0.1 / records:
        return ""
    if delta >= 1 / records:
        return (
            f"delta {delta:g} is at least 1/records = {1 / records:.3g}: it allows a mechanism that publishes a random "
            "record, so no single record is protected"
        )
    return (
        f"delta {delta:g} is above 1/(10 records) = {0.1 / records:.3g}: it almost allows a mechanism that publishes a "
        "random record"
    )
