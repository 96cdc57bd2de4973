"""The contract of a collector: it reads values now and then, on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """One value; the metric's name ends in its unit. A missing value has no reading."""

    metric: str
    value: float
    device: str | None = None


class Collector(Protocol):
    """One file in this folder holds one collector, under the name `COLLECTOR`.

    To add a collector, copy `process.py`: it is the smallest.
    """

    @property
    def name(self) -> str:
        """Return the text of the `source` column: the file's name."""

    @property
    def interval_s(self) -> float:
        """Return the seconds from one reading to the next."""

    def why_not(self) -> str:
        """Return why it cannot measure on this machine and what helps; empty if it can."""

    def read(self) -> Iterable[Reading]:
        """Return the values now. It may raise: the poller counts the failure and continues."""
