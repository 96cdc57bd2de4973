"""Lines that several of NVIDIA's tools print through DLLogger: parameters and results."""

from __future__ import annotations

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.text import Line, number_after

LARGEST_BATCH = 10_000_000


def read_parameters(line: Line, found: Found, fact: str) -> None:
    """Take the batch size of a line of parameters as `fact`; a run may begin there."""
    _, mark, parameters = line.text.partition(" - PARAMETER ")
    if not mark:
        return
    size = number_after(parameters, "batch_size :")
    if size is not None and 1 <= size <= LARGEST_BATCH:
        found.header_lines.append(line.number)
        found.add_facts(**{fact: int(size)})


def read_result(line: Line, found: Found, label: str, what: str, unit: str, how: str) -> None:
    """Take the result after `label`, if the line has one; the last of each kind counts."""
    value = number_after(line.text, label)
    if value is not None:
        found.add_result(line.number, what, value, unit, how)
