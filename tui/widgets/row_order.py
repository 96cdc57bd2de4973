"""Tools for the rows of a table: filters, and the order by a column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from profkit.errors import UsageError
from profkit.frame.estimate import Ints
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
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"not a regular expression: {error}") from None
    return lambda text: expression.search(text) is not None


def sort_rows(column: Column, *, descending: bool) -> Ints:
    """Return the rows in the order of a column's values; rows without a value come last."""
    if isinstance(column.values, np.ndarray):
        ascending = np.argsort(column.values, kind="stable")
        count = len(ascending)
        if column.values.dtype.kind == "f":
            count -= int(np.isnan(column.values).sum())  # NaN is sorted to the end
    else:
        keys: dict[int, Any] = {}
        missing: list[int] = []
        for row, value in enumerate(column.values):
            if value is None or (isinstance(value, float) and math.isnan(value)):
                missing.append(row)
            else:
                keys[row] = value.casefold() if isinstance(value, str) else value
        ascending = np.array([*sorted(keys, key=keys.__getitem__), *missing], dtype=np.int64)
        count = len(keys)
    if not descending:
        return ascending
    return np.concatenate([ascending[:count][::-1], ascending[count:]])
