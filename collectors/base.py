"""What a collector is: something that reads values now and then, off the step's path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """One value; the metric's name ends in its unit. A value that cannot be had is not a reading."""

    metric: str
    value: float
    device: str | None = None


class Collector(Protocol):
    """One file in this folder holds one collector, under the name `COLLECTOR`.

    To add a collector, copy `process.py`: it is the smallest.
    """

    @property
    def name(self) -> str:
        """What stands in the `source` column: the file's name."""

    @property
    def interval_s(self) -> float:
        """How often to read."""

    def why_not(self) -> str:
        """Why it can measure nothing on this machine and what would help; empty where it can."""

    def read(self) -> Iterable[Reading]:
        """The values now. May raise: the poller counts it and goes on."""
