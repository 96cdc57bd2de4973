"""Timestamps, in the shapes that logs have; zones are never printed, so all are taken for UTC."""

from __future__ import annotations

import calendar
import re
from datetime import datetime

from profkit.importers.logs.text import as_number

_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_DATED = re.compile(rf"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[ T]{_CLOCK}")
_YEARLESS = re.compile(rf"\[(\d\d)/(\d\d) {_CLOCK}\]")
_EPOCH = re.compile(
    r"(?:NVLOGv[\d.]{1,12} \w{1,40}|AI-Rank-log|timestamp:) (1\d{9}(?:\.\d{1,9})?)(?!\d)"
)
LEAP_YEAR = 2000
"""Stands in for a year that is not there: every date exists in it."""

YEAR_S = 366 * 86_400


def find_time(text: str) -> float | None:
    """The line's first timestamp, in seconds since 1970; one without a year is put into `LEAP_YEAR`."""
    if found := _DATED.search(text, 0, 400):
        return _seconds(int(found[1]), *found.groups()[1:])
    if found := _YEARLESS.search(text, 0, 400):
        return _seconds(LEAP_YEAR, *found.groups())
    found = _EPOCH.search(text, 0, 400)
    return as_number(found[1]) if found else None


def has_year(time_s: float) -> bool:
    return time_s > (LEAP_YEAR - 1970 + 2) * YEAR_S


def _seconds(
    year: int, month: str, day: str, hour: str, minute: str, second: str, fraction: str | None
) -> float | None:
    try:
        whole = datetime(year, int(month), int(day), int(hour), int(minute), int(second))  # noqa: DTZ001  # logs name no zone
    except ValueError:
        return None
    return calendar.timegm(whole.timetuple()) + float(f"0.{fraction or 0}")
