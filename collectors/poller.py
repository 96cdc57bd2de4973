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
from profkit.vocab import COLLECTORS_CPU, FAILURES, HANGS

log = logging.getLogger("profkit")

Append = Callable[[tuple[Any, ...]], None]

PATIENCE_NS = 2_000_000_000
"""A reading that takes longer than this is reported."""

MOST_READINGS = 10_000
"""Readings taken per round: a broken collector may yield without end."""

_METRIC = re.compile(r"[a-z0-9_]{1,100}")


class Poller:
    """Reads each collector at its interval and appends rows of the `samples` table."""

    def __init__(
        self, collectors: Sequence[Collector], append: Append, *, clock: Clock = now_ns
    ) -> None:
        self._due = {collector.name: (collector, 0) for collector in collectors}
        self._append = append
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profkit-poller", daemon=True)
        self._reading: tuple[str, int] | None = None
        self.failures: Counter[str] = Counter()
        self.longest_ns: Counter[str] = Counter()
        """The longest reading of each collector that took too long."""
        self.cpu_ns = 0
        """Processor time that the thread has used."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float = 0.5) -> None:
        """End the polling; a collector that hangs stays on its daemon thread."""
        self.end()
        self._thread.join(timeout_s)
        for collector, _ in self._due.values():
            try:
                # Remove what the collector hung into the process; most hang in nothing.
                getattr(collector, "close", lambda: None)()
            except Exception as error:  # noqa: BLE001  # as in a reading
                log.warning(
                    "profkit: the %s collector could not be closed: %s", collector.name, error
                )

    def end(self) -> None:
        """Take no more readings, without waiting for the current one."""
        self._ending.set()
        if reading := self._reading:
            self._note_time(*reading)

    def poll(self) -> float:
        """Take the readings that are due, and return the seconds until the next one."""
        now = self._clock()
        for name, (collector, due_ns) in list(self._due.items()):
            if now >= due_ns:
                self._due[name] = (collector, now + int(collector.interval_s * 1e9))
                self._reading = reading = (name, self._clock())
                self._read(collector)
                self._reading = None
                self._note_time(*reading)
        next_ns = min(due_ns for _, due_ns in self._due.values())
        return max(0.0, (next_ns - self._clock()) / 1e9)

    def _run(self) -> None:
        while self._due and not self._ending.is_set():
            wait = self.poll()
            self.cpu_ns = time.thread_time_ns()
            self._ending.wait(wait)

    def _read(self, collector: Collector) -> None:
        problem = ""
        try:
            for reading in itertools.islice(collector.read(), MOST_READINGS):
                if self._ending.is_set():
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
            self._append((None, "profkit", failure_metric(name), self._clock(), 1.0))

    def _note_time(self, name: str, since_ns: int) -> None:
        took = self._clock() - since_ns
        if took > PATIENCE_NS:
            self.longest_ns[name] = max(self.longest_ns[name], took)


MAX_DEVICE_CHARS = 100


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


def failure_metric(name: str) -> str:
    """Return the metric that counts a collector's failures."""
    return f"{FAILURES}{name} collector"


def hang_metric(name: str) -> str:
    """Return the metric that holds how long a collector did not answer."""
    return f"{HANGS}{name} collector"


class Pollers:
    """Each collector on a poller of its own, so that a hanging one delays none of the others."""

    def __init__(
        self, collectors: Sequence[Collector], append: Append, *, clock: Clock = now_ns
    ) -> None:
        self._append = append
        self._clock = clock
        self._pollers = [Poller([collector], append, clock=clock) for collector in collectors]

    def start(self) -> None:
        for poller in self._pollers:
            poller.start()

    def stop(self, *, timeout_s: float = 0.5) -> None:
        """End all of them within the one timeout, and record failures and hangs."""
        deadline = time.monotonic() + timeout_s
        for poller in self._pollers:
            poller.end()
        for poller in self._pollers:
            poller.stop(timeout_s=max(0.0, deadline - time.monotonic()))
            now = self._clock()
            for name, count in poller.failures.items():
                self._append((None, "profkit", failure_metric(name), now, float(count)))
            self._append((None, "profkit", COLLECTORS_CPU, now, float(poller.cpu_ns)))
            for name, took_ns in poller.longest_ns.items():
                self._append((None, "profkit", hang_metric(name), now, float(took_ns)))
