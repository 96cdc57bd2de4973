"""Watches the step time of a job from outside, and says since when it has changed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.instrument.guard import guarded

if TYPE_CHECKING:
    from profkit.analysis.run_change import RunChange
    from profkit.frame.estimate import Ints
    from profkit.trace.tail import Latest, RunTail

FIRST_LOOKS_S, LOOK_EVERY_S = 1.0, 10.0
"""How often to look if the job has written its first steps, and then for changes of them."""

MOST_NEW = 500
"""Short steps are looked at once so many are new: no more than a thousand are kept."""

MOST_LOAD = 0.01
"""Looking takes at most this share of a core."""

MOST_READINGS = 32
"""A table that has grown by more than can be read at once is read in so many parts."""

MOST_SAID = 10
"""Lines of one run; after that, only `profkit report` lists the changes."""

FIRST_PART = 1 / 4
"""What seems to begin in this part of the kept steps, once earlier ones were dropped, is not news.

An earlier look saw it with more steps before it. A drift may also have begun before them.
"""

STEEPER = 2.0
"""It is said again if it changes the kept steps by so many times what was said of it."""

LONGEST_END_S = 2.0
"""The job's exit code does not wait longer for a look that is under way."""


class ChangeAlarm:
    """Reads the steps of a run while they are written, and prints each change once.

    It runs in the process that started the job, so the job's own threads never wait for it.
    """

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.since = 0
        """The first step of the level that the run has now."""
        self._said = 0
        self._drift = 0.0
        """The change of the last drift that was said."""
        self.knows_periodic = False
        self._tail: RunTail | None = None

    def start(self) -> None:
        watch = guarded("change alarm", self._watch, None)
        self._thread = threading.Thread(target=watch, name="profkit-changes", daemon=True)
        self._thread.start()

    def stop(self, longest_s: float = LONGEST_END_S) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(longest_s)

    def _watch(self) -> None:
        search = guarded("a look for changes", self._search, LOOK_EVERY_S)
        pause_s = FIRST_LOOKS_S
        while not self._ended.wait(pause_s) and self._said < MOST_SAID:
            pause_s = search(pause_s)

    def _search(self, waited_s: float) -> float:
        """Print the changes that are new, and return how long to wait before the next look."""
        if self._tail is None:
            first = min(self._run.glob("r*/steps.arrows"), default=None)
            if first is None:
                return waited_s
            from profkit.trace.tail import RunTail

            # Ranks take steps together, and each further one would cost the same again.
            self._tail = RunTail(self._run, marks=True, only=first.parent)
        begun_s = time.thread_time()
        pause_s = LOOK_EVERY_S
        for _ in range(MOST_READINGS):  # a mark that is not read yet leaves a step the job's own
            latest = self._tail.look()
            if not latest.behind:
                for line in self.find(latest):
                    self._say(line)
                pause_s = min(pause_s, MOST_NEW * _step_s(latest))
                break
        return max(FIRST_LOOKS_S, pause_s, (time.thread_time() - begun_s) / MOST_LOAD)

    def find(self, latest: Latest) -> list[str]:
        """Return a line for each new change."""
        from profkit.analysis.change_words import say_change
        from profkit.analysis.run_change import ChangeKind
        from profkit.analysis.run_changes import changes_of
        from profkit.frame.selection import (
            DEFAULT_WARM_UP,
            including_batches,
            select_steps,
            window_steps,
            without_marked,
        )

        if not latest.steps.num_rows or not latest.ranks:
            return []
        steps = latest.steps["step"].to_numpy()
        warm_up = DEFAULT_WARM_UP if not steps.min() else 0
        windows = window_steps(latest.samples)
        found = select_steps(latest.steps, warm_up=warm_up, windows=windows)
        used = including_batches(without_marked(found, latest.steps, latest.samples, latest.events))
        rank = min(latest.ranks)
        has_slid = steps.min() > self.since
        used = used[used >= self.since]
        anchor, lines = latest.ranks[rank].anchor, []
        for change in changes_of(
            latest.steps,
            latest.spans,
            used,
            rank=rank,
            anchor=anchor,
            spans_from=latest.spans_from,
        ):
            if change.kind is ChangeKind.PERIODIC:
                if self.knows_periodic:
                    continue
                self.knows_periodic = True
            elif (
                change.first_step <= self.since
                or self._goes_on(change, used)
                or (has_slid and change.kind is not ChangeKind.DRIFT and _is_early(change, used))
            ):
                continue
            else:
                self.since = change.last_step or change.first_step
                if change.kind is ChangeKind.DRIFT:
                    self._drift = change.change.value
            self._said += 1
            lines.append(say_change(change))
        return lines

    def _goes_on(self, change: RunChange, used: Ints) -> bool:
        """Return true if a drift is one that was said: any later place may seem its first.

        Once the steps before it are no longer kept, it seems to begin where the kept ones do. It is
        said again once it is far steeper.
        """
        from profkit.analysis.change_points import FEWEST_BEFORE
        from profkit.analysis.run_change import ChangeKind

        if change.kind is not ChangeKind.DRIFT or not self.since:
            return False
        if change.first_step <= self.since + FEWEST_BEFORE:
            return True
        steeper = change.change.value / self._drift if self._drift else math.inf
        return 0 < steeper < STEEPER and _is_early(change, used)


def _is_early(change: RunChange, used: Ints) -> bool:
    return bool(change.first_step <= used[int(FIRST_PART * len(used))])


def _step_s(latest: Latest) -> float:
    """Return the mean length of the latest steps; infinite without any."""
    steps = latest.steps
    if not steps.num_rows:
        return math.inf
    lengths_ns = steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()
    return float(lengths_ns.mean()) / 1e9
