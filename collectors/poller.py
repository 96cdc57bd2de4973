"""Calls collectors on a thread of its own, and survives whatever they do."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from profkit.clock import Clock, now_ns
from profkit.collectors.base import Collector

log = logging.getLogger("profkit")


class Poller:
    """Reads each collector at its interval and appends rows of the `samples` table."""

    def __init__(self, collectors: Sequence[Collector], append: Callable[[tuple[Any, ...]], None], *, clock: Clock = now_ns) -> None:
        self._due = {collector.name: (collector, 0) for collector in collectors}
        self._append = append
        self._clock = clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profkit-poller", daemon=True)
        self.failures: Counter[str] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout_s: float = 0.5) -> None:
        """End the polling; a collector that hangs is left behind on its daemon thread."""
        self._ending.set()
        self._thread.join(timeout_s)

    def poll(self) -> float:
        """Read what is due, and return the seconds until the next reading is."""
        now = self._clock()
        for name, (collector, due_ns) in list(self._due.items()):
            if now >= due_ns:
                self._due[name] = (collector, now + int(collector.interval_s * 1e9))
                self._read(collector)
        return max(0.0, (min(due for _, due in self._due.values()) - self._clock()) / 1e9)

    def _run(self) -> None:
        while self._due and not self._ending.wait(self.poll()):
            pass

    def _read(self, collector: Collector) -> None:
        try:
            for reading in collector.read():
                value = float(reading.value)
                if math.isfinite(value):
                    self._append((reading.device, collector.name, reading.metric, self._clock(), value))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a collector is a plug-in: whatever it raises, the job goes on
            self.failures[collector.name] += 1
            if self.failures[collector.name] == 1:
                log.warning("profkit: the %s collector failed and is tried again: %s", collector.name, error)
