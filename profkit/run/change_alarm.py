"""Watches the step time of a job from outside, and says since when it has changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.attached import RUN_VARIABLE
from profkit.instrument.guard import guarded
from profkit.run.collecting import Choice

if TYPE_CHECKING:
    from profkit.trace.tail import Latest, RunTail

LOOK_EVERY_S = 1.0
"""The writer of each rank writes twice as often."""

MOST_LOAD = 0.02
"""Looking takes at most this share of a core from the job's machine."""

MOST_SAID = 10
"""Lines of one run; after that, only `profkit report` lists the changes."""

LONGEST_END_S = 2.0
"""The job's exit code does not wait longer for a look that is under way."""


class ChangeAlarm:
    """Reads the steps of a run while they are written, and prints each change once.

    It runs in the process that started the job, so the job's own threads never wait for it.
    """

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        environ = {**os.environ, RUN_VARIABLE: str(run)}
        self._experiment = Choice.read(environ).experiment
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._since = 0
        """The first step of the level that the run has now."""
        self._said = 0
        self._said_periodic = False

    def start(self) -> None:
        watch = guarded("change alarm", self._watch, None)
        self._thread = threading.Thread(target=watch, name="profkit-changes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LONGEST_END_S)

    def _watch(self) -> None:
        tail: RunTail | None = None
        pause_s = LOOK_EVERY_S
        while not self._ended.wait(pause_s) and self._said < MOST_SAID:
            begun_s = time.thread_time()
            if tail is None:
                if next(self._run.glob("r*/steps.arrows"), None) is None:
                    continue
                from profkit.trace.tail import RunTail

                tail = RunTail(self._run)
            for line in self.find(tail.look()):
                self._say(line)
            pause_s = max(LOOK_EVERY_S, (time.thread_time() - begun_s) / MOST_LOAD)

    def find(self, latest: Latest) -> Iterator[str]:
        """Yield a line for each change that the latest steps show and that was not said yet."""
        from profkit.analysis.change_words import say_change
        from profkit.analysis.run_changes import ChangeKind, changes_of
        from profkit.analysis.selection import DEFAULT_WARM_UP, select_steps

        if not latest.steps.num_rows or not latest.ranks:
            return
        steps = latest.steps["step"].to_numpy()
        warm_up = DEFAULT_WARM_UP if not steps.min() else 0
        used = select_steps(latest.steps, warm_up=warm_up).steps
        spans = latest.spans["step"].drop_null().to_numpy()
        if len(spans):  # fewer spans than steps are kept
            used = used[used > spans.min()]
        rank = min(latest.ranks)
        used = used[used >= self._since]
        if self._experiment is not None:
            used = used[list(map(self._experiment.is_usual, used.tolist()))]
        anchor = latest.ranks[rank].anchor
        for change in changes_of(latest.steps, latest.spans, used, rank=rank, anchor=anchor):
            if change.kind is ChangeKind.PERIODIC:
                if self._said_periodic:
                    continue
                self._said_periodic = True
            elif change.first_step <= self._since:
                continue
            else:
                self._since = change.last_step or change.first_step
            self._said += 1
            yield say_change(change)
