"""Exports a run while it is written, from the process that started the job.

Nothing runs in the job, and nothing listens: the process that waits for the job reads the files
that the ranks write, as the live screen does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from profkit.analysis.views.live import build_live_view
from profkit.errors import ProfkitError
from profkit.metrics.base import Sink
from profkit.metrics.points import of_live
from profkit.trace.manifest import RunManifest
from profkit.trace.tail import RunTail
from profkit.vocab import RunState

EVERY_S = 15.0
"""Prometheus scrapes about as often; more frequent figures would never be seen."""

LONGEST_END_S = 20.0
"""The command ends after this time even if a receiver still does not answer."""


class Follower:
    """A thread that hands the metrics of a run to sinks, and says once what went wrong."""

    def __init__(
        self,
        run: Path,
        sinks: Sequence[Sink],
        say: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._tail = RunTail(run)
        self._sinks = sinks
        self._say = say
        self._every_s = every_s
        self._ended = threading.Event()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._follow, name="profkit-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Export the last figures, and return."""
        self._ended.set()
        self._thread.join(LONGEST_END_S)

    def _follow(self) -> None:
        while not self._ended.wait(self._every_s):
            self._export()
        self._export()
        state = self._read_state()
        for sink in self._sinks:
            self._try(functools.partial(sink.close, state))

    def _read_state(self) -> RunState:
        """Return how the job ended; it runs still if nobody could write that it has ended."""
        try:
            return RunManifest.read(self._tail.path).state
        except ProfkitError as error:
            self._report(error)
            return RunState.RUNNING

    def _export(self) -> None:
        """Hand the present figures to each sink; one that fails does not keep others from them."""
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
        for sink in self._sinks:
            self._try(functools.partial(sink.send, snapshot))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # a client library may raise anything
            self._report(error)

    def _report(self, error: Exception) -> None:
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, ProfkitError):
            words = str(error)
        if words not in self._said:
            self._said.add(words)
            try:
                self._say(f"metrics: {words}; the job goes on")
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
