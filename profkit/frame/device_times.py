"""The device times that a run on a device recorded, and those that are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa

from profkit.errors import UnreadableError
from profkit.frame.columns import step_places
from profkit.frame.device_clock import Bools, has_device_times, works
from profkit.frame.estimate import Ints
from profkit.text import plural
from profkit.trace import Trace
from profkit.trace.reader import RankTrace, events_of
from profkit.vocab import EventKind, MissingTime

HOST = "cpu"
LAUNCHES = (
    "the phases are on the host's clock: they show when it launched work and where it waited, not "
    "how long the device worked"
)
_MOST_RANKS_NAMED = 8
_SITES = ("device times", "device events", "reading the device's clock")
"""The parts of profkit that take device times, by the name under which a failure is recorded."""


class PhaseClock(str, Enum):
    """The clock that a run's phases were timed on."""

    HOST = "host"
    """The host did the work itself, or nothing is known of a device."""
    DEVICE = "device"
    LAUNCH = "launch"
    """The host's, of work that a device did: without device times, nobody knows when."""
    MIXED = "mixed"
    """Repeats differ in this."""


@dataclass(frozen=True)
class DeviceTimes:
    """The phases that a device works for, in the measured steps of a run on devices.

    Device times begin with the first backward, so the phases before it in a rank's first step do
    not count. `reasons` are those that the run recorded for missing times.
    """

    phases: int
    missing: int
    steps: int
    """The steps in which some rank's times are missing."""
    ranks: tuple[int, ...]
    """The ranks without any device time."""
    ranks_in_all: int
    reasons: tuple[str, ...]

    @property
    def notices(self) -> Iterator[str]:
        """Yield how many times are missing, what follows from it, and why they are."""
        if not self.missing:
            return
        why = "; ".join(self.reasons) or "the run did not record why"
        words = f"no device times for {self.missing:,} of {plural(self.phases, 'phase')}"
        if self.missing == self.phases:
            yield f"{words} ({why}); {LAUNCHES}"
            return
        if self.ranks:
            named = ", ".join(map(str, self.ranks[:_MOST_RANKS_NAMED]))
            if len(self.ranks) > _MOST_RANKS_NAMED:
                named += ", ..."
            words += f", with none on {plural(len(self.ranks), 'rank')} ({named})"
        kept = "the phases are those of the ranks and steps that have them"
        yield f"{words}, in {plural(self.steps, 'step')} ({why}); {kept}"


@dataclass(frozen=True)
class DeviceCounts:
    """The phases of one rank that a device works for, and those without device times."""

    phases: int
    missing: int
    steps: Ints
    """The steps of those that are missing."""
    any_timed: bool
    """True if any span has device times."""

    @classmethod
    def of(cls, spans: pa.Table) -> DeviceCounts:
        timed = has_device_times(spans)
        works_for = works(spans) & ~_before_the_first(spans, timed)
        missing = works_for & ~timed
        steps = spans["step"].filter(pa.array(missing)).drop_null()
        found = np.unique(steps.to_numpy()).astype(np.int64)
        return cls(int(works_for.sum()), int(missing.sum()), found, bool(timed.any()))


def join_device_times(trace: Trace, counts: Mapping[int, DeviceCounts]) -> DeviceTimes | None:
    """Add up the ranks' counts; `None` for other tools' runs, and without a device."""
    any_timed = any(each.any_timed for each in counts.values())
    if not is_own(trace) or not (any_timed or uses_device(trace)):
        return None
    phases = missing = 0
    without, steps = [], set[int]()
    for rank, own in counts.items():
        phases, missing = phases + own.phases, missing + own.missing
        steps.update(own.steps.tolist())
        if own.phases and own.missing == own.phases:
            without.append(rank)
    return DeviceTimes(
        phases=phases,
        missing=missing,
        steps=len(steps),
        ranks=tuple(without),
        ranks_in_all=len(trace.ranks),
        reasons=tuple(_reasons(trace)),
    )


def _before_the_first(spans: pa.Table, timed: Bools) -> Bools:
    """Return which spans of a rank are before its first device time.

    If that is not in the rank's first step, device times were missing.
    """
    start, step = spans["start_ns"].to_numpy(), spans["step"].fill_null(0).to_numpy()
    if not timed.any() or step[timed].min() != step.min():
        return np.zeros(len(start), dtype=bool)
    return np.asarray(start < start[timed].min())


def is_own(trace: Trace) -> bool:
    """Return true if profkit recorded the run itself."""
    return "imported_from" not in trace.manifest.config


def device_of(trace: Trace) -> str:
    """Return the kind of device that all ranks of a run trained on, such as `cuda`.

    It is empty if ranks differ, or if nothing recorded it: other tools do not name the device of a
    rank, and a loop of no known framework is not asked for it.
    """
    found = set[str]()
    for rank in trace.ranks:
        with contextlib.suppress(UnreadableError):  # it was killed while it opened its files
            has_framework = rank.manifest.framework or trace.manifest.framework
            found.add(rank.manifest.device.partition(":")[0] if has_framework else "")
    if len(found) != 1 or not is_own(trace):
        return ""
    return found.pop()


def clock_of(trace: Trace, *, on_device: bool) -> PhaseClock:
    """Return the clock of a run's phases; `on_device` says that they have device times."""
    if on_device:
        return PhaseClock.DEVICE
    return PhaseClock.LAUNCH if is_own(trace) and uses_device(trace) else PhaseClock.HOST


def uses_device(trace: Trace) -> bool:
    """Return true if the run trained on devices other than the host: its ranks are alike."""
    for rank in trace.ranks:
        with contextlib.suppress(UnreadableError):
            return trains_on_device(rank)
    return False


def trains_on_device(rank: RankTrace) -> bool:
    """Return true if a rank trained on another device than the host."""
    return rank.manifest.device not in ("", HOST)


def device_kinds(trace: Trace) -> str:
    """Return the kinds of devices that the ranks trained on, such as `cuda`."""
    kinds = set()
    for rank in trace.ranks:
        with contextlib.suppress(UnreadableError):
            kinds.add(rank.manifest.device.partition(":")[0])
    return ", ".join(sorted(kinds))


def ranks_on_device(spans: pa.Table, used: Ints) -> Ints:
    """Return the ranks with device times in the used steps."""
    timed = has_device_times(spans)
    if not timed.any():
        return np.empty(0, dtype=np.int64)
    inside = timed & (step_places(spans, used) >= 0)
    return np.unique(spans["rank"].to_numpy()[inside]).astype(np.int64)


def rows_of_ranks(rows: pa.Table, ranks: Ints) -> pa.Table:
    """Return the rows of these ranks; of all, if none is named."""
    if not len(ranks) or not rows.num_rows:
        return rows
    kept: Bools = np.isin(rows["rank"].to_numpy(), ranks)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _reasons(trace: Trace) -> Iterator[str]:
    """Yield what the run recorded about missing device times."""
    for kind in (EventKind.UNTIMED, EventKind.FAILURE):
        rows = events_of(trace.events, kind)
        rows = rows.group_by(["name", "rank"]).aggregate([("value", "max")])
        rows = rows.group_by("name").aggregate([("value_max", "sum")])
        for row in rows.to_pylist():
            name, count = row["name"], int(row["value_max_sum"] or 0)
            if name == MissingTime.NO_EVENTS.value:
                yield name
            elif kind is EventKind.UNTIMED and count > 0:
                yield f"{name}: {count:,}"
            elif name in _SITES:
                yield f"profkit's {name} failed {plural(count, 'time')}"
