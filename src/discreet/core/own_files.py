"""Which names stand for files of the user, by how they end."""

OWN = (".npz", ".csv", ".parquet")
TABLES = (".csv", ".parquet")


def is_own(name: object) -> bool:
    """Whether a name is a file of the user, whose records are private unless they are declared public.

    >>> is_own("visits.csv"), is_own("digits")
    (True, False)
    """
    return str(name).lower().endswith(OWN)


def is_table(name: object) -> bool:
    return str(name).lower().endswith(TABLES)
