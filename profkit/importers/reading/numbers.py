"""Types of columns, and exact decimal numbers that never become a double."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MISSING = -(2**63)
MISSING_SMALL = -(2**31)
_LARGEST = 2**63 - 1
_MAX_DIGITS = 20
_MAX_POWER = 100_000
_POWER_CHARACTERS = 8
"""Longer exponents are out of any range, and slow to convert."""

_NUMBER = re.compile(r"(-?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?", re.ASCII)


def exact(text: str, scale: int) -> int:
    """Return a decimal number times ten to the `scale`, rounded half up, or `MISSING`."""
    found = _NUMBER.fullmatch(text)
    if not found or not (found[2] or found[3]):
        return MISSING
    fraction = found[3] or ""
    digits = (found[2] + fraction).lstrip("0")
    exponent = scale - len(fraction)
    if found[4]:
        exponent += max(-_MAX_POWER, min(_MAX_POWER, int(found[4][:_POWER_CHARACTERS])))
    length = len(digits) + exponent
    if not digits or length < 0:
        return 0
    if length > _MAX_DIGITS:
        return MISSING
    if exponent >= 0:
        value = int(digits + "0" * exponent)
    else:
        rounds_up = digits[exponent] >= "5"
        value = int(digits[:exponent] or "0") + int(rounds_up)
    if value > _LARGEST:
        return MISSING
    if found[1]:
        return -value
    return value
