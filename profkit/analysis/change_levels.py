"""The parts of a series of step times between the shifts of its level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from profkit.analysis.change_noise import BY_MEDIAN, scatter_of
from profkit.analysis.change_points import (
    FEWEST_BEFORE,
    LEAST_CHANGE,
    SHORT_PART,
    Shift,
    find_shifts,
    latest_shift,
)
from profkit.analysis.run_change import ChangeKind
from profkit.frame.costs import OUTLIER_FACTOR
from profkit.frame.estimate import Estimate, Floats, Ints, divide, estimate_ratios

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


# Tells a drift of the step time from successive shifts of its level.
_BLOCKS = 40
"""A drift is told from steps by so many medians."""

FEWEST_PER_BLOCK = 3
_BETTER_FIT, _FEW_SHIFTS = 0.7, 2
"""The squared error of a bent line must be below this share of that of one or two shifts.

More shifts have more parameters than the line.
"""


_FEWEST_BLOCKS = 1
"""After the last shift, so many blocks are needed: their medians do not show fewer steps."""

_LEFT_OVER = 0.2
"""Without a shift, a drift must leave at most this share of the medians' squared deviations."""

_LEFT_AMONG = 0.5
"""The same with shifts: a job that goes to and fro between two levels has no drift."""

LEAST_DRIFT, _FEWEST_RISING = 0.05, 10
"""Such a drift changes the step by this share, over so many medians; a line bends by chance too."""


def find_drift_alone(logs: Floats) -> int | None:
    """Return where a drift begins in a series without shifts; `None` if it has none."""
    if len(logs) < _BLOCKS * FEWEST_PER_BLOCK:
        return None
    parts = np.array_split(logs, _BLOCKS)
    medians = np.array([np.median(part) for part in parts])
    fits = [_bent_line(medians, corner) for corner in range(_BLOCKS - _FEWEST_RISING + 1)]
    corner = int(np.argmin([error for error, _ in fits]))
    error, slope = fits[corner]
    if error > _LEFT_OVER * float(((medians - medians.mean()) ** 2).sum()):
        return None
    if abs(slope) * (_BLOCKS - corner) < LEAST_DRIFT:
        return None
    middle = (corner + _BLOCKS) // 2  # a step that no shift shows is no drift
    for half in (medians[corner:middle], medians[middle:]):
        if _bent_line(half, 0)[1] * slope <= 0:
            return None
    return sum(len(part) for part in parts[:corner])


def find_drift_among(
    logs: Floats, bounds: Sequence[int], place: int, rises: Sequence[float]
) -> tuple[int | None, int]:
    """Return where a drift begins that some shifts are, and the number of the shift after it.

    Shifts of one direction from the number `place` on may be a drift. If they are none, the largest
    of them may be a jump of its own, which ends the drift. `bounds` has the ends of the series too.
    """
    after = place + 1
    while after < len(rises) and (rises[after] > 0) == (rises[place] > 0):
        after += 1
    while after > place:
        drift = find_drift(logs, bounds, bounds[place], bounds[after + 1])
        if drift is not None:
            return drift, after
        after = place + int(np.argmax(np.abs(rises[place:after])))
    return None, after


def find_drift(logs: Floats, bounds: Sequence[int], begin: int, end: int) -> int | None:
    """Return where a drift begins, if a bent line fits better than the shifts; else `None`.

    The series are logarithms of step times, and `bounds` are the places of all shifts.
    """
    blocks = min(_BLOCKS, (end - begin) // FEWEST_PER_BLOCK)
    if blocks < _BLOCKS // 2:
        return None
    parts = np.array_split(logs[begin:end], blocks)
    medians = np.array([np.median(part) for part in parts])
    fits = [_bent_line(medians, corner) for corner in range(blocks - 3)]
    errors = [error for error, _ in fits]
    corner = int(np.argmin(errors))
    if errors[corner] > _LEFT_AMONG * float(((medians - medians.mean()) ** 2).sum()):
        return None
    level = np.empty(end - begin)
    inner = [bound for bound in bounds if begin < bound < end]
    if inner and end - inner[-1] < _FEWEST_BLOCKS * len(parts[-1]):
        return None
    for first, last in zip([begin, *inner], [*inner, end], strict=True):
        level[first - begin : last - begin] = np.median(logs[first:last])
    stepped = np.array([np.median(part) for part in np.array_split(level, blocks)])
    needed = _BETTER_FIT if len(inner) <= _FEW_SHIFTS else 1.0
    if errors[corner] >= needed * float(((medians - stepped) ** 2).sum()):
        return None
    if abs(fits[corner][1]) * (blocks - corner) < LEAST_CHANGE:
        return None
    return begin + sum(len(part) for part in parts[:corner])


def _bent_line(values: Floats, corner: int) -> tuple[float, float]:
    """Return the squared error and the slope of a line that is flat before a corner."""
    ramp = np.maximum(0.0, np.arange(len(values)) - (corner - 0.5))
    centred = ramp - ramp.mean()
    slope = float(centred @ values / (centred @ centred))
    rest = values - values.mean() - slope * centred
    return float(rest @ rest), slope


# Finds where a job has warmed up, and early changes.
#
# Both are what later steps show of the first ones, which are often unlike all others.
_SETTLES_IN = 5
"""The beginning of a level is searched in so many times the fewest steps before a change."""

_FAR_SPREADS, _LEAST_SPREAD = 3.0, 0.005
_FEWEST_FAR, _MORE_FAR = 10, 3.0
"""First steps are uneven if so many are so many spreads away from the middle of later ones.

Of the later ones, far fewer must be: in a job with two kinds of steps, many are at any time.
"""

_EVEN_FROM, _EVEN_BEFORE, _FEWEST_EVEN = (50, 70, 90), 10, 24
"""Later steps begin there, after so many even ones; fewer do not show their spread."""

_MORE_UNEVEN = 2.0
"""More than `FEWEST_BEFORE` first steps must scatter so many times as much: else they differ from
later ones by a change.
"""

_EARLY, _LATER = 160, 352
"""Few steps show little of what differs by chance, so later ones are asked about changes in these.
"""

EVEN_KNOWN = _EVEN_FROM[-1] + FEWEST_BEFORE
"""`find_even` looks at so many steps."""


def find_settled(step_ns: Floats) -> int:
    """Return where the level of a series begins: `find_shifts` sees no change so early.

    The steps before it would count as noise, which hides later changes.
    """
    first = step_ns[: _SETTLES_IN * FEWEST_BEFORE]
    later = first[FEWEST_BEFORE:]
    if not len(later):
        return 0
    rise = math.log(max(1.0, np.median(later)) / max(1.0, np.median(first[: BY_MEDIAN[0]])))
    if abs(rise) < LEAST_CHANGE:  # a search takes some milliseconds
        return 0
    for shift in find_shifts(first[::-1]):
        if len(first) - shift.at < FEWEST_BEFORE:
            return len(first) - shift.at
    return 0


def find_early(step_ns: Floats) -> Shift | None:
    """Return a change of the level in the first steps that a search from the end shows.

    `find_shifts` may miss it: it knows the noise by the few steps before the change only.
    """
    known = step_ns[: _EARLY + _LATER]
    early = min(_EARLY, len(known) // 2)
    shift = latest_shift(known[::-1], early) if early > FEWEST_BEFORE else None
    if shift is None:
        return None
    at = len(known) - shift.at
    logs = np.log(np.maximum(known, 1.0))
    if not FEWEST_BEFORE <= at < early or _is_uneven(logs[:at], logs[at:]):
        return None
    return Shift(at, len(known) - 1, -shift.rise)


def find_even(step_ns: Floats) -> int:
    """Return where first steps end that are far more uneven than those after them.

    They would count as noise too. It takes a hundredth of the time of `find_settled`.
    """
    logs = np.log(np.maximum(step_ns[:EVEN_KNOWN], 1.0))
    for before in _EVEN_FROM:
        even = logs[before : before + FEWEST_BEFORE]
        if len(even) < _FEWEST_EVEN:
            break
        middle = float(np.median(even))
        spread = max(_LEAST_SPREAD, 1.4826 * float(np.median(np.abs(even - middle))))
        is_far = np.abs(logs[: before + len(even)] - middle) > _FAR_SPREADS * spread
        first = is_far[:before]
        if first.sum() < _FEWEST_FAR or first.mean() < _MORE_FAR * is_far[before:].mean():
            continue
        crowded = np.convolve(first, np.ones(SHORT_PART), "valid") >= SHORT_PART / 2
        last = int(np.flatnonzero(crowded)[-1]) + SHORT_PART if crowded.any() else 0
        at = 1 + int(np.flatnonzero(first[:last])[-1]) if last else 0
        if at <= FEWEST_BEFORE or (at <= before - _EVEN_BEFORE and _is_uneven(logs[:at], even)):
            return at
    return 0


def _is_uneven(first: Floats, even: Floats) -> bool:
    """Return true if first steps differ from later ones by their scatter, not by a change."""
    own = float(np.median(first))
    spread = 1.4826 * float(np.median(np.abs(first - own)))
    is_changed = abs(own - float(np.median(even))) > _MORE_UNEVEN * spread
    return not is_changed and scatter_of(first) >= _MORE_UNEVEN * scatter_of(even)
