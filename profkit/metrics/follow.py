"""Exports a run while it is written, from the process that started the job.

Nothing runs in the job, and nothing listens: the process that waits for the job reads the files
that the ranks write, as the live screen does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from profkit.analysis.overview import build_overview
from profkit.analysis.views.live import build_live_view
from profkit.errors import ProfkitError
from profkit.metrics.base import Sink
from profkit.metrics.points import Snapshot, of_live, of_overview
from profkit.text import safe_text, without_password
from profkit.trace import Trace
from profkit.trace.manifest import RunManifest
from profkit.trace.tail import MOST_RANKS, RunTail
from profkit.vocab import RunState

EVERY_S = 15.0
"""Prometheus scrapes about as often; more frequent figures would never be seen."""

LONGEST_END_S = 20.0
"""The command ends after this time even if a receiver still does not answer."""

WITHOUT_ANSWER_S = 60.0
"""A receiver that has not taken its figures for this long is reported."""


class Carrier:
    """A thread of one sink.

    A receiver that does not answer keeps no other from figures. One that is slower than they come
    gets the newest ones.
    """

    def __init__(self, sink: Sink, report: Callable[[Exception], None]) -> None:
        self._sink = sink
        self._report = report
        self._changed = threading.Condition()
        self._next: Snapshot | None = None
        self._end: tuple[RunState, Snapshot | None] | None = None
        self._begun_s: float | None = None
        self._thread = threading.Thread(target=self._carry, name="profkit-sink", daemon=True)
        self._thread.start()

    def give(self, snapshot: Snapshot) -> None:
        """Hand over the newest figures, and report a receiver that does not answer."""
        with self._changed:
            self._next = snapshot
            self._changed.notify()
        begun_s = self._begun_s
        if begun_s is not None and time.monotonic() - begun_s > WITHOUT_ANSWER_S:
            self._report(
                ProfkitError(f"{self._name} has not taken its figures for {WITHOUT_ANSWER_S:.0f} s")
            )

    def end(self, state: RunState, report: Snapshot | None) -> None:
        """Hand over how the job ended, and the figures of the whole run, after the last ones."""
        with self._changed:
            self._end = state, report
            self._changed.notify()

    def join(self, longest_s: float) -> None:
        """Wait until the receiver has everything, for no longer than this."""
        self._thread.join(max(0.0, longest_s))
        if self._thread.is_alive():
            self._report(
                ProfkitError(f"{self._name} did not take its figures within {LONGEST_END_S:.0f} s")
            )

    @property
    def _name(self) -> str:
        return type(self._sink).__name__

    def _carry(self) -> None:
        is_open = True
        while is_open:
            with self._changed:
                self._changed.wait_for(lambda: self._next or self._end)
                snapshot, self._next = self._next, None
            is_open = snapshot is not None
            self._begun_s = time.monotonic()
            try:
                if snapshot is not None:
                    self._sink.send(snapshot)
                elif self._end is not None:
                    self._sink.close(*self._end)
            except Exception as error:  # noqa: BLE001  # a client library may raise anything
                self._report(error)
            self._begun_s = None


class Follower:
    """A thread that reads the metrics of a run for sinks, and says once what went wrong."""

    def __init__(
        self,
        run: Path,
        sinks: Sequence[Sink],
        say: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._tail = RunTail(run)
        self._say = say
        self._every_s = every_s
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._carriers = [Carrier(sink, self._report) for sink in sinks]
        self._thread = threading.Thread(target=self._follow, name="profkit-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export the last figures, and return."""
        ends_s = time.monotonic() + LONGEST_END_S
        self._ended.set()
        self._thread.join(LONGEST_END_S)
        for carrier in self._carriers:
            carrier.join(ends_s - time.monotonic())

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._export()
        self._export()
        state, report = self._read_state(), self._read_report()
        for carrier in self._carriers:
            carrier.end(state, report)

    def _read_state(self) -> RunState:
        """Return how the job ended; it runs still if nobody could write that it has ended."""
        try:
            return RunManifest.read(self._tail.path).state
        except ProfkitError as error:
            self._report(error)
            return RunState.RUNNING

    def _read_report(self) -> Snapshot | None:
        """Return the figures of `report`, unless a run of many ranks would take long to read."""
        try:
            trace = Trace.open(self._tail.path)
            if len(trace.ranks) > MOST_RANKS or not trace.steps.num_rows:
                return None
            return of_overview(build_overview(trace, with_kernels=False), None)
        except Exception as error:  # noqa: BLE001  # as in `_export`
            self._report(error)
            return None

    def _export(self) -> None:
        """Hand the present figures to each sink."""
        try:
            latest = self._tail.look()
            while latest.behind and self._ended.is_set():
                latest = self._tail.look()
            now_ns = time.time_ns()
            view = build_live_view(self._tail.path.name, latest, now_ns)
            world_size = max((rank.world_size for rank in latest.ranks.values()), default=1)
            snapshot = of_live(view, world_size, now_ns / 1e9)
        except Exception as error:  # noqa: BLE001  # no figure is worth the job's exit code
            self._report(error)
            return
        for carrier in self._carriers:
            carrier.give(snapshot)

    def _report(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, ProfkitError):
            words = str(error)
        words = without_password(" ".join(words.split()))
        words = safe_text(words)  # a receiver may answer anything
        if words in self._said:
            return
        self._said.add(words)
        rest = (
            "the last figures may be missing there" if self._ended.is_set() else "the job goes on"
        )
        try:
            self._say(f"metrics: {words}; {rest}")
        except Exception:  # noqa: BLE001  # a closed stderr must not stop the job
            return


@contextlib.contextmanager
def following(run: Path, sinks: Sequence[Sink], say: Callable[[str], None]) -> Iterator[None]:
    """Export a run while the block runs, and its last figures after it."""
    follower = Follower(run, sinks, say)
    follower.start()
    try:
        yield
    finally:
        follower.stop()
