"""What NVIDIA's DLLogger lines share: parameters, and results behind `Summary:` or nothing."""

from __future__ import annotations

import re

from profkit.importers._logs._grammar import Found
from profkit.importers._logs._text import Line, as_count, as_number, number_after

_PARAMETERS = re.compile(r"DLL .{1,30} - PARAMETER .{0,4000}?(?<![\w.])batch_size : (\d{1,8})")


def read_parameters(line: Line, found: Found, batch: str) -> None:
    """The batch size, under the name `batch` that this tool's counts by, from a line of parameters; it may begin a run."""
    match = _PARAMETERS.search(line.text) if "PARAMETER" in line.text else None
    if match is None:
        return
    found.headers.append(line.number)
    found.tell(**{batch: as_count(match[1])})


def take_result(line: Line, found: Found, key: str, what: str, unit: str, how: str) -> None:
    """Take the result behind `key`, if the line has it; the last of each kind counts."""
    value = number_after(line.text, key)
    if value is not None:
        found.result(line.number, what, value, unit, how)


def number_in_table(text: str) -> float | None:
    """The figure of a row such as `     8     |   2957.8  |`."""
    cells = [cell.strip() for cell in text.split("|")]
    return as_number(cells[1]) if len(cells) == 3 and cells[0].isdigit() else None
