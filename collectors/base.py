"""The contract of a collector: it reads values now and then, on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Reading(NamedTuple):
    """One value; the metric's name ends in its unit. A missing value has no reading.

    Names consist of lower-case letters, digits and `_`. `UNITS` in `tui/widgets/readings.py` lists
    the units that screens format.
    """

    metric: str
    value: float
    device: str | None = None


class Collector(Protocol):
    """One file in this folder holds one collector, under the name `COLLECTOR`.

    To add a collector, copy `process.py`: it is the smallest. `profkit doctor` shows the first line
    of the module's docstring as what is measured. Every rank runs each collector. One that reads
    what is the same for the whole machine yields it on the first rank only, as `host.py` does.

    A collector may also define `close()`, which undoes its hooks at the end of a run, and
    `limits()`, which returns what it can measure only in part.
    """

    name: str
    """The text of the `source` column: the file's name."""
    interval_s: float
    """The seconds from one reading to the next."""

    def why_not(self) -> str:
        """Return why it cannot measure on this machine and what helps; empty if it can.

        The first `; ` separates the reason from what helps.
        """

    def read(self) -> Iterable[Reading]:
        """Return the values now. It may raise: the poller counts the failure and continues."""
