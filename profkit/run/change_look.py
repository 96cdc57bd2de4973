"""Looks at the steps of a running job, and decides when to search them for a change.

Reading all tables of a rank and searching takes tens of milliseconds. So a look reads step times,
and compares the new ones with those before. If they seem to differ, and now and then from savings,
the step times alone are searched. Only if these show a change, all tables are read. All of it stays
within a budget per step.

All of it is about one rank: those of a job take steps together, and each further one would cost the
same again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from profkit.analysis.change_points import latest_shift, seems_changed
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.periodic import find_periodic
from profkit.trace.pulse import read_pulse
from profkit.trace.tail import KEPT_ROWS, Latest, RunTail, TableTail

LOOK_EVERY_S = 0.5
"""The writer of each rank writes as often."""

MOST_S_PER_STEP, MOST_LOAD = 6e-6, 6e-5
"""Looking takes about this time per step, or of steps above 100 ms this share of a core.

With the credit, that is about 10 us per step in a run of 20,000 steps.
"""

CREDIT_S = 0.06
"""So much more may be spent when something seems to have changed, or at first."""

MOST_DEBT_S = 0.03
"""What a search of many rows takes beyond the credit; a change must not go unseen for hours."""

MOST_NEW = KEPT_ROWS["steps"] // 2
"""A look comes at the latest after so many steps: a change must not leave those that are kept."""

KEPT_LENGTHS = KEPT_ROWS["steps"]

MOST_CORE = 0.02
"""Of very short steps, looking takes at most this share of a core."""

SUSPECT_LOOKS = 2
"""After steps that seem to have changed, so many looks search for a change."""

LAST = 64
"""The length of a step now is the median of so many."""

FEWEST_AFTER, SOON = 12, 24
"""A change must be so many steps old; before that, the next look comes after `SOON` steps."""

LONGEST_PAUSE_S = 50.0
"""Rows of a part that was thinned are gone: a look must come before its next part has ended."""

MOST_READINGS = 32
"""A table that has grown by more than can be read at once is read in so many parts."""

T = TypeVar("T")


class Look:
    """Follows the steps of the rank in `folder`, and on suspicion all of its tables."""

    def __init__(self, run: Path, folder: Path) -> None:
        self._tail = RunTail(run, marks=True, only=folder)
        self._folder = folder
        self._steps = TableTail(folder, "steps")
        self._numbers: Ints = np.empty(0, np.int64)
        self._lengths_ns: Floats = np.empty(0)
        self._seen = -1
        """The last step that was looked at."""
        self._suspect = 0
        self._new = 0
        """Steps that were not searched yet."""
        self.budget = Budget()
        self._look_s: float | None = None

    def look(
        self, waited_s: float, *, since: int = 0, knows_periodic: bool = False
    ) -> tuple[Latest | None, float]:
        """Return the latest rows if they show a change, and how long to wait then.

        What is known does not count: changes before the step `since`, and periodic slow steps.
        """
        begun_s = time.thread_time()
        count = self._read_new(since)
        if count:
            self.budget.earn(waited_s, float(np.median(self._lengths_ns[-LAST:])) / 1e9)
            self._judge(count)
        look_s = time.thread_time() - begun_s
        self._look_s = look_s if self._look_s is None else min(look_s, 2 * self._look_s)
        pause_s = self.budget.pause_s(self._look_s)
        if not count or not self.budget.allows(suspect=self._suspect > 0):
            return None, pause_s
        steps = self.pay_for(functools.partial(self._steps_since_change, knows_periodic))
        if steps is not None and steps >= FEWEST_AFTER:
            return self._read_all(), pause_s
        self._suspect = max(int(steps is not None), self._suspect - 1)
        if self._suspect:
            pause_s = min(pause_s, max(LOOK_EVERY_S, SOON * self.budget.step_s))
        return None, pause_s

    def pay_for(self, search: Callable[[], T]) -> T:
        """Do a part of a search, and take its processor time from the budget."""
        begun_s = time.thread_time()
        try:
            return search()
        finally:
            self.budget.pay(time.thread_time() - begun_s)

    def _judge(self, count: int) -> None:
        """Suspect a change if the new steps seem to differ."""
        if not self._suspect:
            self._new = 0
        self._new += count
        if seems_changed(self._lengths_ns, count):
            self._suspect = SUSPECT_LOOKS

    def _steps_since_change(self, knows_periodic: bool) -> int | None:
        """Return how many steps ago the step times show a change; `None` without one."""
        count = len(self._lengths_ns)
        new = min(self._new, count) if self._suspect else count
        shift = latest_shift(self._lengths_ns, new)
        if shift is not None:
            return count - shift.at
        if knows_periodic:
            return None
        usual_ns = np.full(count, np.median(self._lengths_ns))
        found = find_periodic(self._numbers, self._lengths_ns, usual_ns)
        return count if found is not None else None

    def _read_all(self) -> Latest | None:
        """Return the latest rows of all tables; `None` if more is there than is read at once."""
        for _ in range(MOST_READINGS):  # a mark that is not read yet leaves a step the job's own
            latest = self.pay_for(self._tail.look)
            if not latest.behind:
                self._suspect = max(0, self._suspect - 1)
                return latest
        return None

    def _read_new(self, since: int) -> int:
        """Add the new step times, forget those before a step, and return how many are new."""
        found = read_pulse(self._folder, self._seen)
        if found is None:
            found = self._read_steps()
        numbers = np.concatenate([self._numbers, found[0]])[-KEPT_LENGTHS:]
        lengths_ns = np.concatenate([self._lengths_ns, found[1]])[-KEPT_LENGTHS:]
        is_later = numbers >= since
        self._numbers, self._lengths_ns = numbers[is_later], lengths_ns[is_later]
        if not len(self._numbers):
            return 0
        self._seen = int(self._numbers[-1])
        return min(len(found[0]), len(self._numbers))

    def _read_steps(self) -> tuple[Ints, Ints]:
        """Return the new step times from the table, if the rank could not write them apart."""
        numbers, lengths_ns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in self._steps.read():
            fresh = batch["step"].to_numpy() > self._seen
            numbers.append(batch["step"].to_numpy()[fresh])
            lengths_ns.append((batch["end_ns"].to_numpy() - batch["start_ns"].to_numpy())[fresh])
        return np.concatenate(numbers), np.concatenate(lengths_ns)


class Budget:
    """The processor time that looking may take: half for looks, half for searches."""

    def __init__(self) -> None:
        self._share, self.step_s = MOST_LOAD, 0.0
        self._credit_s = CREDIT_S

    def earn(self, waited_s: float, step_s: float) -> None:
        """Add what the steps of this time allow; `step_s` is the length of one."""
        self.step_s = step_s
        self._share = max(MOST_LOAD, min(MOST_CORE, MOST_S_PER_STEP / max(step_s, 1e-9)))
        self._credit_s = min(CREDIT_S, self._credit_s + waited_s * self._share / 2)

    def pause_s(self, look_s: float) -> float:
        """Return how long to wait after a look that took this time."""
        longest_s = min(LONGEST_PAUSE_S, MOST_NEW * self.step_s)
        return max(LOOK_EVERY_S, min(longest_s, 2 * look_s / self._share))

    def allows(self, *, suspect: bool) -> bool:
        """Return true if a search may be made: on suspicion at once, otherwise from savings."""
        return self._credit_s > 0 if suspect else self._credit_s >= CREDIT_S

    def pay(self, search_s: float) -> None:
        """Take away what a search took."""
        self._credit_s = max(-MOST_DEBT_S, self._credit_s - search_s)
