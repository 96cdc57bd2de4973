"""The parts of a series of step times between the shifts of its level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from profkit.analysis.change_points import (
    FEWEST_BEFORE,
    LEAST_CHANGE,
    Shift,
    find_shifts,
)
from profkit.analysis.costs import OUTLIER_FACTOR
from profkit.analysis.drifts import find_drift_alone, find_drift_among
from profkit.analysis.estimate import Estimate, Floats, Ints, divide, estimate_ratios
from profkit.analysis.run_change import ChangeKind
from profkit.analysis.settling import find_early, find_even, find_settled

_BACK_SHARE = 0.3
"""A burst is over if the level is back to this share of the rise."""

_FAR_LARGER, _LARGEST_CHANGE = 2.0, 1.0
"""The next search is for shifts that are larger by this factor, up to this logarithm."""

_NEAR = 8
"""What stays after a burst is found so many steps from its end."""


class Levels:
    """The levels of a series, and the changes between them."""

    def __init__(self, wall_ns: Floats) -> None:
        self._wall_ns = wall_ns
        self._logs = np.log(np.maximum(wall_ns, 1.0))
        settled = find_settled(wall_ns) or find_even(wall_ns)
        found = _find_all(wall_ns[settled:])
        if settled and not found:  # fewer steps show less of what differs by chance
            found = [shift for shift in _find_all(wall_ns) if shift.at > settled + _NEAR]
            settled = 0 if found else settled
        shifts = list(self._with_ends(found, settled))
        kept = self._search_again(shifts, self._confirmed(shifts, settled), settled)
        self.bounds = [settled, *kept, len(wall_ns)]
        """The places where levels begin, and the end of the series."""

    def _search_again(self, shifts: Sequence[Shift], kept: list[int], settled: int) -> list[int]:
        """Search for larger shifts soon after those that were dropped, and return all places.

        The first steps after a shift show the noise of its level, so they are not searched. If
        the shift is dropped, a burst in these steps would be missed.
        """
        dropped = [shift for shift in shifts if shift.at not in kept]
        if not dropped:
            return kept
        least = _FAR_LARGER * max(LEAST_CHANGE, min(abs(shift.rise) for shift in dropped))
        while least < _LARGEST_CHANGE:
            again = find_shifts(self._wall_ns[settled:], least=least)
            larger = list(self._with_ends(again, settled))
            for shift in shifts:
                if all(abs(shift.at - other.at) > _NEAR for other in larger):
                    larger.append(shift)
            places = self._confirmed(sorted(larger, key=lambda each: each.at), settled)
            for place in places:
                if any(0 < place - shift.at <= FEWEST_BEFORE for shift in dropped):
                    return places
            least *= _FAR_LARGER
        return kept

    def usual_ns(self) -> Floats:
        """Return the median of the level of each step."""
        found = np.empty(len(self._wall_ns))
        for begin, end in itertools.pairwise(sorted({0, *self.bounds})):
            found[begin:end] = math.exp(float(np.median(self._logs[begin:end])))
        return found

    def _with_ends(self, shifts: Sequence[Shift], first: int) -> Iterator[Shift]:
        """Yield the shifts after the place `first`, and the ends of those that soon go back."""
        places = [*(first + shift.at for shift in shifts), len(self._logs)]
        for shift, (at, end) in zip(shifts, itertools.pairwise(places), strict=True):
            yield replace(shift, at=at)
            back = at + find_settled(self._wall_ns[at:end])
            if back > at:
                yield Shift(back, back, self._rise(at, back, end))

    def _confirmed(self, shifts: Sequence[Shift], first: int) -> list[int]:
        """Return the places of the shifts that the whole parts on both sides confirm.

        The smallest is judged first, because without it the parts of its neighbours are longer.
        """
        kept = [shift.at for shift in shifts]
        for shift in sorted(shifts, key=lambda each: abs(each.rise)):
            bounds = [first, *kept, len(self._logs)]
            place = bounds.index(shift.at)
            begin, end = bounds[place - 1], bounds[place + 1]
            ratio = self.ratio(np.arange(begin, shift.at), np.arange(shift.at, end))[2]
            rise = self._rise(begin, shift.at, end)
            if abs(rise) < LEAST_CHANGE or not is_sure(ratio):
                kept.remove(shift.at)
        return kept

    def ratio(self, before: Ints, after: Ints) -> tuple[Estimate, Estimate, Estimate]:
        """Return the mean step of both parts, and by what share the later one is longer."""
        sides = []
        for places in (before, after):
            values = self._wall_ns[usual_places(self._wall_ns, places)]
            sides.append(estimate_ratios(values[None, :], np.ones((1, len(values))))[0])
        return sides[0], sides[1], _less_one(divide(sides[1], sides[0]))

    def places(self) -> Iterator[tuple[ChangeKind, int, int, Ints]]:
        """Yield each change: kind, first place, the place after it, and the places before it.

        Successive shifts of one direction may be a drift, and two that cancel are a burst.
        """
        bounds = self.bounds
        first, last = bounds[0], bounds[-1]
        if len(bounds) == 2 and (drift := find_drift_alone(self._logs[first:])) is not None:
            yield ChangeKind.DRIFT, first + drift, last, np.arange(first, first + drift)
        rises = list(map(self._rise, bounds, bounds[1:], bounds[2:]))
        place = 0
        while place < len(rises):
            begin, at = bounds[place], bounds[place + 1]
            drift, after = find_drift_among(self._logs, bounds, place, rises)
            if drift is not None:
                yield ChangeKind.DRIFT, drift, bounds[after + 1], np.arange(begin, drift)
                place = after
                continue
            following, before = bounds[place + 2], np.arange(begin, at)
            back = rises[place] + (rises[place + 1] if place + 1 < len(rises) else math.inf)
            if abs(back) <= max(LEAST_CHANGE, _BACK_SHARE * abs(rises[place])):
                yield ChangeKind.BURST, at, following, before
                end = bounds[place + 3]
                if self._differ(before, np.arange(following, end)):
                    yield ChangeKind.STEP, following, end, before
                place += 2
                continue
            yield ChangeKind.STEP, at, following, before
            place += 1

    def _differ(self, before: Ints, after: Ints) -> bool:
        """Return true if two levels would differ if nothing had been between them."""
        joined = self._wall_ns[np.concatenate([before, after])]
        places = np.array([shift.at for shift in find_shifts(joined)])
        rise = float(np.median(self._logs[after]) - np.median(self._logs[before]))
        is_there = bool((np.abs(places - len(before)) <= _NEAR).any())
        return is_there and abs(rise) >= LEAST_CHANGE

    def _rise(self, before: int, at: int, after: int) -> float:
        return float(np.median(self._logs[at:after]) - np.median(self._logs[before:at]))


def _find_all(wall_ns: Floats) -> list[Shift]:
    """Return the shifts of a whole series, and an early one that only later steps show."""
    found = find_shifts(wall_ns)
    early = find_early(wall_ns[: found[0].at] if found else wall_ns)
    if early is None:
        return found
    at = early.at  # the noise of the steps after it is learned anew
    later = find_shifts(wall_ns[at:])
    return [early, *(Shift(at + each.at, at + each.seen, each.rise) for each in later)]


def usual_places(wall_ns: Floats, places: Ints) -> Ints:
    """Return the places without steps that are far longer than the others."""
    return places[wall_ns[places] <= OUTLIER_FACTOR * np.median(wall_ns[places])]


def is_sure(change: Estimate) -> bool:
    """Return true if an interval is on one side of zero."""
    if change.low is None or change.high is None:
        return False
    return change.low > 0 or change.high < 0


def _less_one(quotient: Estimate) -> Estimate:
    if quotient.low is None or quotient.high is None:
        return Estimate(quotient.value - 1)
    return Estimate(quotient.value - 1, quotient.low - 1, quotient.high - 1, quotient.level)
