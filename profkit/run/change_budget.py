"""The processor time that looking for changes may take while a job runs."""

from __future__ import annotations

from profkit.run.change_glance import Seems
from profkit.trace.tail import KEPT_ROWS

LOOK_EVERY_S = 0.5
"""The writer of each rank writes as often."""

MOST_S_PER_STEP, MOST_LOAD = 4.5e-6, 4.5e-5
"""Looking takes about this time per step, or of steps above 100 ms this share of a core.

With the credit, that is about 10 us per step in a run of 20,000 steps.
"""

CREDIT_S, GLANCE_CREDIT_S = 0.05, 0.01
"""So much more may be spent when something seems to have changed, or at first.

Looks after a glance leave half of it for searches.
"""

SAVED_PART = 0.8
"""Steps that only may have changed are searched while so much of the credit is left."""

MOST_DEBT_S = 0.03
"""What a search of many rows takes beyond the credit; a change must not go unseen for hours."""

ALARM_CREDIT_S, ALARM_PART = 0.15, 1 / 8
"""What surely changed is searched in debt too, from this credit and this part of the budget.

Chance has it searched a few times in vain, and on a slow machine a search takes longer than is
saved. Once the steps before a change are no longer kept, it is never found.
"""

MOST_NEW = KEPT_ROWS["steps"] // 2
"""A look comes at the latest after so many steps: a change must not leave those that are kept."""

MOST_CORE = 0.02
"""Of very short steps, looking takes at most this share of a core."""

LOOK_PART, GLANCE_PART, SEARCH_PART = 1 / 8, 3 / 8, 3 / 8
"""The parts of the budget for looks, glances and searches."""

LONGEST_PAUSE_S = 50.0
"""Rows of a part that was thinned are gone: a look must come before its next part has ended."""


class Budget:
    """The processor time that looking may take, for each kind of look."""

    def __init__(self) -> None:
        self._share, self.step_s = MOST_LOAD, 0.0
        self._credit_s, self._glance_credit_s = CREDIT_S, GLANCE_CREDIT_S
        self._alarm_credit_s = ALARM_CREDIT_S
        self.is_alarm = False
        """True while what is paid for is the search of a sure change, in debt."""

    def set_step(self, step_s: float) -> None:
        """Allow what there is for steps of this length."""
        self.step_s = step_s
        self._share = max(MOST_LOAD, min(MOST_CORE, MOST_S_PER_STEP / max(step_s, 1e-9)))

    def earn(self, waited_s: float) -> None:
        """Add what this time allows."""
        earned_s = waited_s * self._share
        self._credit_s = min(CREDIT_S, self._credit_s + SEARCH_PART * earned_s)
        alarm_credit_s = self._alarm_credit_s + ALARM_PART * earned_s
        self._alarm_credit_s = min(ALARM_CREDIT_S, alarm_credit_s)
        glance_credit_s = self._glance_credit_s + GLANCE_PART * earned_s
        self._glance_credit_s = min(GLANCE_CREDIT_S, glance_credit_s)

    def look_pause_s(self, look_s: float) -> float:
        """Return how long to wait after a look that took this time."""
        longest_s = min(LONGEST_PAUSE_S, MOST_NEW * self.step_s)
        return max(LOOK_EVERY_S, min(longest_s, look_s / (LOOK_PART * self._share)))

    def glance_pause_s(self, glance_s: float) -> float:
        """Return how long to wait before another glance, which takes this time."""
        missing_s = glance_s - self._glance_credit_s
        return max(LOOK_EVERY_S, missing_s / (GLANCE_PART * self._share))

    def pay_glance(self, glance_s: float) -> None:
        """Take away what a glance took."""
        self._glance_credit_s -= glance_s

    def allows_more_looks(self, seems: Seems) -> bool:
        """Return true if a look may be made before its time.

        What may well be chance is searched from savings, so that a sure change finds some left.
        """
        left = 1 / 2 if seems is Seems.CHANGED else SAVED_PART
        is_allowed = self._credit_s > left * CREDIT_S
        self.is_alarm = seems is Seems.CHANGED and not is_allowed and self._alarm_credit_s > 0
        return is_allowed or self.is_alarm

    def allows(self, *, suspect: bool, sure: bool = False) -> bool:
        """Return true if a search may be made: on suspicion at once, otherwise from savings.

        What surely changed is searched in debt too.
        """
        is_allowed = self._credit_s > 0 if suspect else self._credit_s >= CREDIT_S
        self.is_alarm = sure and not is_allowed and self._alarm_credit_s > 0
        return is_allowed or self.is_alarm

    def pay(self, search_s: float) -> None:
        """Take away what a search took."""
        if self.is_alarm:
            self._alarm_credit_s -= search_s
        else:
            self._credit_s = max(-MOST_DEBT_S, self._credit_s - search_s)
