"""Finds timestamps in the forms that logs have.

Logs print no zones, so all times count as UTC.
"""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timezone

from profkit.importers.logs.text import as_number

LEAP_YEAR = 2000
"""Replaces a year that is not printed: every date exists in this one."""
YEAR_S = 366 * 86_400
_SEARCHED_CHARACTERS = 400

_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_DATED = re.compile(rf"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[ T]{_CLOCK}")
_YEARLESS = re.compile(rf"\[(\d\d)/(\d\d) {_CLOCK}\]")
_EPOCH = re.compile(
    r"(?:NVLOGv[\d.]{1,12} \w{1,40}|AI-Rank-log|timestamp:) (1\d{9}(?:\.\d{1,9})?)(?!\d)"
)


def find_time(text: str) -> float | None:
    """Return the first timestamp in seconds since 1970, in `LEAP_YEAR` if it has no year."""
    if found := _DATED.search(text, 0, _SEARCHED_CHARACTERS):
        return _seconds(int(found[1]), *found.groups()[1:])
    if found := _YEARLESS.search(text, 0, _SEARCHED_CHARACTERS):
        return _seconds(LEAP_YEAR, *found.groups())
    if found := _EPOCH.search(text, 0, _SEARCHED_CHARACTERS):
        return as_number(found[1])
    return None


def has_year(time_s: float) -> bool:
    """Return whether a time that `find_time` returned was printed with its year."""
    return time_s > (LEAP_YEAR - 1970 + 2) * YEAR_S


def _seconds(
    year: int, month: str, day: str, hour: str, minute: str, second: str, fraction: str | None
) -> float | None:
    try:
        whole = datetime(
            year, int(month), int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc
        )
    except ValueError:
        return None
    return calendar.timegm(whole.timetuple()) + float(f"0.{fraction or 0}")
