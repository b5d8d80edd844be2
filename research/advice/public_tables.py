"""Public benchmarks as the files of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from discreet.data import adult
from discreet.data.catalogue import BENCHMARKS
from discreet.data.sources import obtain


def adult_table(folder: Path, *, label: str = "income") -> dict[str, Any]:
    """Adult as the CSV files and the public schema of a user."""
    parts = obtain(BENCHMARKS["adult"].source, data_dir=None, download=False)
    for name, content in zip(("train.csv", "test.csv"), (parts[part] for part in adult.PARTS), strict=True):
        lines = [line.rstrip(".") for line in content.decode().splitlines() if line and not line.startswith("|")]
        rows = [",".join((*adult.COLUMNS, "income")), *(line.replace(", ", ",") for line in lines)]
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    schema: dict[str, Any] = {name: {"bounds": [0, most]} for name, most in adult.RANGES.items()}
    schema |= {name: {"bounds": [0, adult.TOP_CODE], "log": True} for name in ("capital-gain", "capital-loss")}
    schema |= {name: {"categories": list(known)} for name, known in adult.CATEGORIES.items()}
    schema["income"] = {"categories": ["<=50K", ">50K"]}
    files = {"data": str(folder / "train.csv"), "test": str(folder / "test.csv")}
    return {**files, "schema": json.dumps(schema), "label": label, "public_data": True}
