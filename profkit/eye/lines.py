"""Find the line of an instruction in the table of a code object."""

from __future__ import annotations

from typing import Protocol


class _Code(Protocol):
    table: bytes
    first: int


def find_line(code: _Code, place: int, version: tuple[int, int]) -> int:
    """Return the line of the instruction with this number; 0 if it has none."""
    if place < 0:
        return code.first
    find = _find_in_pairs if version < (3, 11) else _find_in_entries
    return find(code.table, code.first, place)


def _find_in_pairs(table: bytes, line: int, place: int) -> int:
    """The table of 3.10 has lengths and differences of lines."""
    end = 0
    for at in range(0, len(table) - 1, 2):
        change = table[at + 1]
        end += table[at]
        if change != 128:
            line += change - 256 if change > 128 else change
        if place * 2 < end:
            return 0 if change == 128 else line
    return 0


def _find_in_entries(table: bytes, line: int, place: int) -> int:
    """Python's `Objects/locations.md` has the format of 3.11 and later."""
    end = at = 0
    while at < len(table):
        kind = table[at] >> 3 & 15
        end += (table[at] & 7) + 1
        at += 1
        if kind in {13, 14}:
            line += _read_signed(table, at)
        elif 10 <= kind <= 12:
            line += kind - 10
        if place < end:
            return 0 if kind == 15 else line
        while at < len(table) and not table[at] & 128:
            at += 1
    return 0


def _read_signed(table: bytes, at: int) -> int:
    number = shift = 0
    for byte in table[at : at + 6]:
        number |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return -(number >> 1) if number & 1 else number >> 1
