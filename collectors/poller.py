"""Calls collectors on threads of their own, and survives whatever they do."""

from __future__ import annotations

import itertools
import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.collectors.base import Collector, Reading
from profkit.vocab import COLLECTORS_CPU, EventKind

log = logging.getLogger("profkit")

Append = Callable[[tuple[Any, ...]], None]

PATIENCE_NS = 2_000_000_000
"""A reading that takes longer than this is reported."""

MOST_READINGS = 10_000
"""Readings taken per round: a broken collector may yield without end."""

MOST_SHARE = 0.002
"""A collector's thread uses at most this share of a processor, or its readings become rarer."""

LONGEST_REST = 5
"""Readings are at most so many intervals apart."""

_METRIC = re.compile(r"[a-z0-9_]{1,100}")


class Pollers:
    """Reads each collector at its interval and appends rows of `samples` and `events`.

    Each collector has a thread of its own, so that one that hangs delays none of the others.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        append: Append,
        events: Append,
        *,
        clock: Clock = now_ns,
    ) -> None:
        self._collectors = collectors
        self._append, self._events = append, events
        self._clock = clock
        self._ending, self._ended = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._began_ns: dict[str, int] = {}
        """The beginning of each collector's reading that has not ended."""
        self.failures: Counter[str] = Counter()
        self.longest_ns: Counter[str] = Counter()
        """The longest reading of each collector that took too long."""
        self.cpu_ns: Counter[str] = Counter()
        """Processor time that each collector's thread has used."""

    def start(self) -> None:
        for collector in self._collectors:
            thread = threading.Thread(
                target=self._run, args=(collector,), name="profkit-poller", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, *, timeout_s: float = 0.5) -> None:
        """End all of them within the one timeout, and record failures and hangs.

        A collector that hangs stays on its daemon thread.
        """
        deadline = time.monotonic() + timeout_s
        self._ending.set()
        for collector, thread in zip(self._collectors, self._threads, strict=False):
            name = collector.name
            self._note_time(name, self._began_ns.get(name))
            thread.join(max(0.0, deadline - time.monotonic()))
            try:
                # Remove what the collector hung into the process; most hang in nothing.
                getattr(collector, "close", lambda: None)()
            except Exception as error:  # noqa: BLE001  # as in a reading
                log.warning("profkit: the %s collector could not be closed: %s", name, error)
            now = self._clock()
            if self.failures[name]:
                self._events(failure(name, now, self.failures[name]))
            self._append((None, "profkit", COLLECTORS_CPU, now, float(self.cpu_ns[name])))
            if self.longest_ns[name]:
                longest_ns = float(self.longest_ns[name])
                self._events((None, now, EventKind.HANG, f"{name} collector", None, longest_ns))
        self._ended.set()

    def poll(self, collector: Collector) -> float:
        """Take a collector's readings, and return the seconds until the next ones."""
        name = collector.name
        self._began_ns[name] = began_ns = self._clock()
        self._read(collector)
        del self._began_ns[name]
        self._note_time(name, began_ns)
        if hasattr(collector, "wait_s"):
            wait_s: float = collector.wait_s()
            return max(0.0, wait_s - getattr(collector, "ahead_s", 0.0))
        return max(0.0, collector.interval_s - (self._clock() - began_ns) / 1e9)

    def _run(self, collector: Collector) -> None:
        before_ns = None
        while not self._ending.is_set():
            wait = self.poll(collector)
            self.cpu_ns[collector.name] = used_ns = time.thread_time_ns()
            if before_ns is not None:  # the first reading imports what it needs
                wait = max(wait, rest_after(collector, used_ns - before_ns))
            before_ns = used_ns
            self._ending.wait(wait)
        if getattr(collector, "reads_at_end", False):
            self._read(collector, self._ended)
            self.cpu_ns[collector.name] = time.thread_time_ns()

    def _read(self, collector: Collector, until: threading.Event | None = None) -> None:
        problem = ""
        ending = until or self._ending
        try:
            for reading in itertools.islice(collector.read(), MOST_READINGS):
                if ending.is_set():
                    return
                found = find_problem(reading)
                if found:
                    problem = found
                    continue
                now, value = self._clock(), float(reading.value)
                self._append((reading.device, collector.name, reading.metric, now, value))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # as plug-ins may
            problem = str(error) or type(error).__name__
        if not problem:
            return
        name = collector.name
        self.failures[name] += 1
        if self.failures[name] == 1:
            log.warning("profkit: the %s collector failed and is tried again: %s", name, problem)
            self._events(failure(name, self._clock()))

    def _note_time(self, name: str, began_ns: int | None) -> None:
        if began_ns is not None and self._clock() - began_ns > PATIENCE_NS:
            self.longest_ns[name] = max(self.longest_ns[name], self._clock() - began_ns)


MAX_DEVICE_CHARS = 100


def rest_after(collector: Collector, used_ns: int) -> float:
    """Return how many seconds to wait after a reading that used so much of a processor.

    On one machine a reading took four times as long as on another.
    """
    if hasattr(collector, "wait_s"):
        return 0.0
    return min(used_ns / 1e9 / MOST_SHARE, LONGEST_REST * collector.interval_s)


def find_problem(reading: Any) -> str:
    """Return what is wrong with a reading; an empty text if it can be written."""
    if not isinstance(reading, Reading):
        return f"it gave {type(reading).__name__} for a reading"
    if not isinstance(reading.metric, str) or not _METRIC.fullmatch(reading.metric):
        return "it gave a reading without a proper name"
    device: object = reading.device
    if device is not None:
        if not isinstance(device, str) or len(device) >= MAX_DEVICE_CHARS:
            return "it gave a reading without a proper device"
        if not device.isprintable():
            return "it gave a reading without a proper device"
    if not isinstance(reading.value, int | float) or not math.isfinite(reading.value):
        return f"it gave no number for {reading.metric}"
    return ""


def failure(name: str, time_ns: int, count: int = 1) -> tuple[Any, ...]:
    """Return the event of a collector that has failed so many times."""
    return None, time_ns, EventKind.FAILURE, f"{name} collector", None, float(count)
