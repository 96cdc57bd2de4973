"""The cells of a matrix as CSV and as JSON rows."""

from __future__ import annotations

import csv
import io
import json

from profkit.bench.read import Benched, rows
from profkit.exporters.csv import cell as csv_cell


def as_csv(view: Benched) -> str:
    """Return one row per cell; a field is empty if it was not measured."""
    found = rows(view)
    names: dict[str, None] = {}
    for row in found:
        names.update(dict.fromkeys(row))
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in found:
        writer.writerow([csv_cell(row.get(name)) for name in names])
    return file.getvalue()


def as_json_rows(view: Benched) -> str:
    """Return one JSON row per cell and line, with the fields of published database records."""
    lines = []
    for row in rows(view):
        lines.append(json.dumps(row, allow_nan=False) + "\n")
    return "".join(lines)
