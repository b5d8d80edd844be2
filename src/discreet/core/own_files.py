"""Which names stand for files of the user, by how they end, and what can be predicted in them."""

from discreet.core.check import require

CLASSIFICATION = "classification"
TASKS = (CLASSIFICATION, "regression", "multilabel")

OWN = (".npz", ".csv", ".parquet")
TABLES = (".csv", ".parquet")


def is_own(name: object) -> bool:
    """Whether a name is a file of the user, whose records are private unless they are declared public.

    >>> is_own("visits.csv"), is_own("digits")
    (True, False)
    """
    return str(name).lower().endswith(OWN)


def is_table(name: object, label: object = None) -> bool:
    """Whether a file holds named columns: by how it ends, or because a column of it is named as the label.

    >>> is_table("visits.csv"), is_table("visits.npz"), is_table("visits.npz", "readmitted")
    (True, False, True)
    """
    file = str(name).lower()
    return file.endswith(TABLES) or (label is not None and file.endswith(OWN))


def require_classes(task: str | None, command: str) -> None:
    """Refuse a task without classes where right answers are counted.

    >>> require_classes(None, "discreet tune")
    """
    remedy = "it counts right predictions; compare settings with `discreet compare` on public records instead"
    require(task in (None, CLASSIFICATION), f"classification for {command}", f"{task}", remedy)
