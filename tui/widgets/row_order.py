"""The order in which a table shows its rows: sorted by a column, and filtered."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from profkit.analysis.estimate import Ints
from profkit.errors import UsageError
from profkit.tui.widgets.columns import Column


def compile_filter(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches a text against a filter.

    A filter is a part of the text in any case, or `re:` and a regular expression.
    """
    if not pattern.startswith("re:"):
        wanted = pattern.casefold()
        return lambda text: wanted in text.casefold()
    try:
        expression = re.compile(pattern.removeprefix("re:"), re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"not a regular expression: {error}") from None
    return lambda text: expression.search(text) is not None


def sort_rows(column: Column, *, descending: bool) -> Ints:
    """Return the rows in the order of a column's values; rows without a value come last."""
    if getattr(column.values, "dtype", None) is not None:
        ascending = np.argsort(np.asarray(column.values), kind="stable")
    else:
        known: list[int] = []
        unknown: list[int] = []
        for row, value in enumerate(column.values):
            (unknown if _is_missing(value) else known).append(row)
        known.sort(key=lambda row: _sort_key(column.values[row]))
        ascending = np.array([*known, *unknown], dtype=np.int64)
    if not descending:
        return ascending
    count = len(ascending) - sum(map(_is_missing, column.values))
    return np.concatenate([ascending[:count][::-1], ascending[count:]])


def filter_rows(columns: Sequence[Column], order: Ints, pattern: str) -> Ints:
    """Return the rows that have a match in a searched column, in the same order."""
    matches = compile_filter(pattern)
    searched = [column for column in columns if column.searched]
    found: list[int] = []
    for row in order.tolist():
        if any(matches(column.text(row)) for column in searched):
            found.append(row)
    return np.array(found, dtype=np.int64)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _sort_key(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value
