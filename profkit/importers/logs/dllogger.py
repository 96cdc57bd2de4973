"""What NVIDIA's DLLogger lines share: parameters, and results behind `Summary:` or nothing."""

from __future__ import annotations

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.text import Line, as_number, number_after

LARGEST_BATCH = 10_000_000


def read_parameters(line: Line, found: Found, batch: str) -> None:
    """The batch size, under the name `batch` that this tool's counts by, from a line of parameters; it may begin a run."""
    _, mark, parameters = line.text.partition(" - PARAMETER ")
    size = number_after(parameters, "batch_size :") if mark else None
    if size is not None and 1 <= size <= LARGEST_BATCH:
        found.headers.append(line.number)
        found.tell(**{batch: int(size)})


def take_result(line: Line, found: Found, key: str, what: str, unit: str, how: str) -> None:
    """Take the result behind `key`, if the line has it; the last of each kind counts."""
    value = number_after(line.text, key)
    if value is not None:
        found.result(line.number, what, value, unit, how)


def number_in_table(text: str) -> float | None:
    """The figure of a row such as `     8     |   2957.8  |`."""
    cells = [cell.strip() for cell in text.split("|")]
    return as_number(cells[1]) if len(cells) == 3 and cells[0].isdigit() else None
