"""Watches the step time of a job from outside, and says since when it has changed."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.instrument.guard import guarded
from profkit.run.capture_requests import CaptureRequests

if TYPE_CHECKING:
    from profkit.analysis.estimate import Ints
    from profkit.analysis.run_change import RunChange
    from profkit.run.change_look import Look
    from profkit.trace.tail import Latest

FIRST_LOOKS_S = 1.0
"""How often to look if the job has written its first steps."""

AGAIN_S = 10.0
"""A look that failed, as on a disk that is lost for a while, is not the last."""

MOST_SAID = 10
"""Lines of one run; after that, only `profkit report` lists the changes."""

FIRST_PART = 1 / 4
"""A drift that seems to begin in this part of the kept steps may have begun before them."""

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
        self._captures = CaptureRequests(run)
        self._look: Look | None = None

    def start(self) -> None:
        watch = guarded("change alarm", self._watch, None)
        self._thread = threading.Thread(target=watch, name="profkit-changes", daemon=True)
        self._thread.start()

    def stop(self, longest_s: float = LONGEST_END_S) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(longest_s)

    def _watch(self) -> None:
        search = guarded("a look for changes", self._search, AGAIN_S)
        pause_s = FIRST_LOOKS_S
        while not self._ended.wait(pause_s) and self._said < MOST_SAID:
            pause_s = search(pause_s)

    def _search(self, waited_s: float) -> float:
        """Print the changes that are new, and return how long to wait before the next look."""
        if self._look is None:
            first = min(self._run.glob("r*/steps.arrows"), default=None)
            if first is None:
                return waited_s
            # These imports are no part of a search, for which there is a budget.
            import profkit.analysis.change_words
            import profkit.analysis.kernels.windows
            import profkit.analysis.run_changes
            import profkit.analysis.selection  # noqa: F401
            from profkit.run.change_look import Look

            self._look = Look(self._run, first.parent)
        latest, pause_s = self._look.look(
            waited_s, since=self.since, knows_periodic=self.knows_periodic
        )
        if latest is not None:
            find = functools.partial(self.find, latest, self._look.new_from)
            for line in self._look.pay_for(find):
                self._say(line)
        return pause_s

    def find(self, latest: Latest, new_from: int | None = None) -> list[str]:
        """Return a line for each new change; steps from `new_from` on seem to have changed."""
        from profkit.analysis.change_words import say_change
        from profkit.analysis.kernels.windows import window_steps
        from profkit.analysis.run_change import ChangeKind
        from profkit.analysis.run_changes import changes_of
        from profkit.analysis.selection import (
            DEFAULT_WARM_UP,
            including_batches,
            select_steps,
            without_marked,
        )

        if not latest.steps.num_rows or not latest.ranks:
            return []
        steps = latest.steps["step"].to_numpy()
        warm_up = DEFAULT_WARM_UP if not steps.min() else 0
        windows = window_steps(latest.samples)
        found = select_steps(latest.steps, warm_up=warm_up, windows=windows)
        used = including_batches(without_marked(found, latest.steps, latest.samples))
        rank = min(latest.ranks)
        used = used[used >= self.since]
        anchor, lines = latest.ranks[rank].anchor, []
        for change in changes_of(
            latest.steps,
            latest.spans,
            used,
            rank=rank,
            anchor=anchor,
            spans_from=latest.spans_from,
            new_from=new_from,
        ):
            if change.kind is ChangeKind.PERIODIC:
                if self.knows_periodic:
                    continue
                self.knows_periodic = True
            elif change.first_step <= self.since or self._goes_on(change, used):
                continue
            else:
                self.since = change.last_step or change.first_step
                if change.kind is ChangeKind.DRIFT:
                    self._drift = change.change.value
            self._said += 1
            lines.append(say_change(change))
            guarded("a request for a capture", self._captures.ask, False)()
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
        return 0 < steeper < STEEPER and change.first_step <= used[int(FIRST_PART * len(used))]
