"""CSV for spreadsheets, one file per table.

Text that a spreadsheet would run as a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profkit.exporters.base import BATCH_ROWS, Window

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The characters with which a spreadsheet begins a formula."""


class Csv:
    """A folder; three numbers in one cell are separated by `x`."""

    name = "csv"
    title = "CSV, a file a table"
    suffix = ""
    is_folder = True
    name_copies = 1
    row_bytes = MappingProxyType(
        {"steps": 70, "spans": 90, "kernels": 200, "collectives": 110, "samples": 70}
        | {"stacks": 60, "frames": 120, "sums": 120}
    )

    def write(self, window: Window, path: Path) -> None:
        path.mkdir(mode=0o700)
        for name, table in window.tables.items():
            if table.num_rows:
                with open(path / f"{name}.csv", "x", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(table.column_names)
                    for batch in table.to_batches(BATCH_ROWS):
                        columns = []
                        for column in batch.columns:
                            columns.append(map(cell, column.to_pylist()))
                        writer.writerows(zip(*columns, strict=True))


def cell(value: Any) -> Any:
    """Return a value as a cell, which is never a formula."""
    if isinstance(value, str):
        if value.startswith(_FORMULA):
            return f"'{value}"
        return value
    if isinstance(value, list):
        return "x".join(map(str, value))
    return value


EXPORTER = Csv()
