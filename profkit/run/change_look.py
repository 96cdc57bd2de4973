"""Looks at the steps of a running job, and decides when to search them for a change.

Reading all tables of a rank and searching takes tens of milliseconds. So a glance at the newest
steps comes first. Now and then, and if these are unusual, a look compares all new step times with
those before. If they seem to differ, and now and then from savings, the step times alone are
searched. Only if these show a change, all tables are read. It stays within a budget per step.

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

from profkit.analysis.change_points import (
    FEWEST_BEFORE,
    SHORT_PART,
    find_shifts,
    latest_shift,
    seems_changed,
)
from profkit.analysis.drifts import find_drift_alone
from profkit.analysis.estimate import Floats, Ints
from profkit.analysis.periodic import find_periodic
from profkit.analysis.selection import DEFAULT_WARM_UP
from profkit.analysis.settling import EVEN_KNOWN, find_even
from profkit.run.change_budget import LOOK_EVERY_S, Budget
from profkit.run.change_glance import Glance, Seems
from profkit.trace.pulse import age_s, read_pulse
from profkit.trace.tail import KEPT_ROWS, Latest, RunTail, TableTail

KEPT_LENGTHS = KEPT_ROWS["steps"]
SUSPECT_LOOKS = 3
"""After steps that seem to have changed, so many looks search for a change."""

ENOUGH_TO_COMPARE = 256
"""Until there are so many steps, looks come soon, because each makes the next glance surer."""

MOST_ALIGNED_S, WRITING_S = 1.0, 0.05
"""Shorter pauses end just after the rank has written, which takes it some milliseconds."""

SETTLED = 128
"""If a search of so many new steps shows no change, there is none to wait for."""

YOUNG, MANY_NEW = 512, 32
"""In so few steps, all are searched if so many are new: a change may be older than these."""

LAST = 64
"""The length of a step now is the median of so many."""

FEWEST_AFTER, SOON = 10, 24
"""A change is said once it is so old. On suspicion, a look comes after `SOON` steps."""

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
        self._suspect = self._since = 0
        self._new = 0
        """Steps that were not searched yet."""
        self._is_uneven = True
        """The first steps of the level may be uneven, which would count as noise."""
        self.new_from = 0
        """The first of the steps in which the latest search was for a change."""
        self.budget = Budget()
        self._glance = Glance(folder)
        self._look_s = self._glance_s = 0.0
        """What a look and a glance usually take."""
        self._since_look_s = self._next_look_s = 0.0

    def look(
        self, waited_s: float, *, since: int = 0, knows_periodic: bool = False
    ) -> tuple[Latest | None, float]:
        """Return the latest rows if they show a change, and how long to wait then.

        What is known does not count: changes before the step `since`, and periodic slow steps.
        """
        self._since_look_s += waited_s
        self.budget.earn(waited_s)
        if since > self._since:  # the change is known by now
            self._since, self._suspect, self._is_uneven = since, 0, True
        latest = None
        is_due = self._since_look_s + LOOK_EVERY_S / 2 >= self._next_look_s
        if is_due or self._glance_is_reason():
            latest = self._look_closer(since, knows_periodic=knows_periodic)
        pause_s = max(LOOK_EVERY_S, self._next_look_s - self._since_look_s)
        if self._glance.knows_usual:
            pause_s = min(pause_s, self.budget.glance_pause_s(self._glance_s))
        return latest, after_writing(pause_s, age_s(self._folder))

    def _glance_is_reason(self) -> bool:
        """Return true if the newest steps are a reason to look closer, which is paid here."""
        begun_s = time.thread_time()
        seems = self._glance.look()
        is_reason = seems is not Seems.USUAL and self.budget.allows_more_looks(seems)
        glance_s = time.thread_time() - begun_s
        self._glance_s = _usual(glance_s, self._glance_s)
        self.budget.pay_glance(glance_s)
        if is_reason:
            self.budget.pay(self._look_s)
            if not self._suspect:
                self._suspect, self._new = SUSPECT_LOOKS, 0
        return is_reason

    def _look_closer(self, since: int, *, knows_periodic: bool) -> Latest | None:
        """Compare all new steps with those before, and decide when to do so again."""
        begun_s = time.thread_time()
        count = self._read_new(since)
        newest_ns = self._lengths_ns[-SHORT_PART:].tolist()
        is_sure = self._glance.judge(newest_ns) is Seems.CHANGED
        if count:
            self.budget.set_step(float(np.median(self._lengths_ns[-LAST:])) / 1e9)
            self._judge(count)
            self._glance.learn(self._lengths_ns)
        self._look_s = _usual(time.thread_time() - begun_s, self._look_s)
        self._since_look_s = 0.0
        self._next_look_s = self.budget.look_pause_s(self._look_s)
        if not count or not self.budget.allows(suspect=self._suspect > 0, sure=is_sure):
            self._come_sooner(self._steps_to_compare())
            return None
        steps = self.pay_for(functools.partial(self._steps_since_change, knows_periodic))
        if steps is not None and steps >= FEWEST_AFTER:
            self._come_sooner(SOON if self._suspect else 0)  # tables may show it later
            return self._read_all()
        settled = self._new >= SETTLED and steps is None
        self._suspect = 0 if settled else max(int(steps is not None), self._suspect - 1)
        if steps is not None:
            self._come_sooner(FEWEST_AFTER - steps)
        elif self._suspect:
            self._come_sooner(SOON)
        else:
            self._come_sooner(self._steps_to_compare())
            if 0 < self._new < SETTLED and len(self._lengths_ns) < YOUNG:
                self._come_sooner(self._new)
        return None

    def _steps_to_compare(self) -> int:
        """Return after how many steps a glance has some, or twice as many, to compare with.

        What is usual follows from few medians at first, so that later ones hardly seem changed.
        """
        count = len(self._lengths_ns)
        if count < FEWEST_BEFORE + SHORT_PART:
            return FEWEST_BEFORE + SHORT_PART - count
        return count if count < ENOUGH_TO_COMPARE else 0

    def _come_sooner(self, steps: int) -> None:
        """Look again once so many steps are there, if this is sooner than planned."""
        if steps > 0:
            soon_s = max(LOOK_EVERY_S, steps * self.budget.step_s)
            self._next_look_s = min(self._next_look_s, soon_s)

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
        self.new_from = int(self._numbers[-new])
        shift = latest_shift(self._lengths_ns, new)
        if shift is None and MANY_NEW <= new < count <= YOUNG:
            shift = next(reversed(find_shifts(self._lengths_ns)), None)
        if shift is not None:
            return count - shift.at
        if self._suspect:
            drift = find_drift_alone(np.log(np.maximum(self._lengths_ns, 1.0)))
            if drift is not None:
                return count - drift
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
        is_later = numbers >= max(since, DEFAULT_WARM_UP)
        self._numbers, self._lengths_ns = numbers[is_later], lengths_ns[is_later]
        if self._is_uneven:
            self._is_uneven = len(self._numbers) < EVEN_KNOWN
            even = find_even(self._lengths_ns)
            self._numbers, self._lengths_ns = self._numbers[even:], self._lengths_ns[even:]
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


def after_writing(pause_s: float, written_s: float | None) -> float:
    """Return a pause near this one that ends just after the rank writes its rows.

    It wrote the last ones `written_s` ago, and writes each half second. Other pauses would find
    rows that are a quarter of a second old on average.
    """
    if written_s is None or pause_s > MOST_ALIGNED_S or not 0 <= written_s <= MOST_ALIGNED_S:
        return pause_s
    until_s = LOOK_EVERY_S + WRITING_S - written_s
    until_s += LOOK_EVERY_S * round((pause_s - until_s) / LOOK_EVERY_S)
    return until_s if until_s >= LOOK_EVERY_S / 2 else until_s + LOOK_EVERY_S


def _usual(latest_s: float, before_s: float) -> float:
    """Return what something takes, of which one time is not taken for usual."""
    return min(latest_s, 2 * before_s) if before_s else latest_s
