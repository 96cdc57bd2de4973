"""The contract of a collector: it reads values now and then, on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol


class Reading(NamedTuple):
    """One value; the metric's name ends in its unit. A missing value has no reading.

    Names consist of lower-case letters, digits and `_`. `UNITS` in
    `tests/collectors/test_poller.py` lists the allowed units, and `UNITS` in
    `tui/widgets/readings.py` those that screens format.
    """

    metric: str
    value: float
    device: str | None = None


class Inside(NamedTuple):
    """The training thread, and the tables for rows that are no readings."""

    thread: int
    thread_name: str
    is_recording: Callable[[], bool]
    """Return false in control steps (recording off)."""
    stacks: Callable[[tuple[Any, ...]], None]
    frames: Callable[[tuple[Any, ...]], None]
    needs_lines: Callable[[], bool] = lambda: False
    """Return true if no other process samples this one's stacks."""
    device: str = ""
    """The device that the thread trains on, such as `cuda:3`; other threads have another one."""


class Collector(Protocol):
    """One file in this folder holds one collector, under the name `COLLECTOR`.

    To add a collector, copy `garbage.py`, which is the smallest. `profkit doctor` shows the first
    line of the module's docstring as what is measured. Every rank runs each collector. One that
    reads what is the same for the whole machine yields it on the first rank only, as `host.py`
    does.

    A collector may also define `close()`, which undoes its hooks at the end of a run, and
    `limits()`, which returns what it can measure only in part. With `watch(inside)`, it gets the
    training thread before its first reading, as `stacks.py` does. With `on_request = True`, it runs
    only if it is named. With `wait_s()`, the time from the end of a reading to the next one differs
    each time.
    With `reads_at_end = True`, it is read once more when the job ends, so that a short run has two
    readings.
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
