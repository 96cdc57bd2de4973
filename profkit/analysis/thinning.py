"""Sums the steps of a long run while it is recorded, and chooses the rows that are kept.

It runs on the writer's thread of a rank, on a minute's rows at a time. The sums are those of
`step_times`, so they are the report's own figures of the same steps.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.lengths import count_lengths, write_lengths
from profkit.frame.columns import durations
from profkit.frame.compiling import steps_compiled
from profkit.frame.estimate import Ints
from profkit.frame.phases import UNKNOWN, step_times
from profkit.frame.selection import (
    CAPTURED,
    COMPILING,
    EPOCH_START,
    KERNEL_WINDOW,
    NO_STEPS,
    PARTIAL_BATCH,
    REASONS,
    SWITCHED_OFF,
    least_whole_batch,
    marked_steps,
    window_steps,
)
from profkit.trace.reader import events_of
from profkit.trace.recent import PART_NS, Fate
from profkit.trace.sampled import step_levels
from profkit.vocab import (
    CAPTURED_STEP,
    CHANGES,
    KERNELS,
    LOADER_WORKER,
    OF_COMPILER,
    USED,
)

KEPT_PER_PART = 32
"""About so many steps of a part are kept in full, of a job that takes more."""

KEPT_ROWS_PER_PART = 768
"""These steps have about so many rows: a step may have hundreds. A day has 1,440 parts."""

EVENT_ROWS = 256
"""Further rows of a part that steps of events may have."""

LOOSE_ROWS = 256
"""Rows of a part that are kept although they are in no step."""

MOST_HELD_ROWS = 100_000
"""Of a step that does not end, workers may make any number of rows: the latest ones are held."""

HELD_STEPS = 64
"""The last steps are held back: a device or a worker reports its part of a step later."""

SAMPLE_GAP_NS = 10_000_000_000
"""Readings of one kind are kept at this distance. Running totals lose nothing by it."""

_MARKING = (KERNELS, CHANGES, *OF_COMPILER)
"""Sources and kinds of rows that are kept, and so are the steps in which they were."""

_MOST_EVENTS = 500
"""Events and their steps that are kept of a part."""

_MOST_SIZES = 10_000
_KINDS = (USED, *REASONS)


class PartThinner:
    """Sums one rank's steps, part after part.

    `steps` are the last ones before the first part, and `spans` what was recorded after them: a
    step may have begun before the first part does.
    """

    def __init__(self, steps: pa.Table, spans: pa.Table) -> None:
        self._sums: dict[tuple[str, str | None], Counter[str]] = {}
        """By kind and phase: steps, samples and ns."""
        self._lengths: dict[str, Counter[int]] = defaultdict(Counter)
        self._bounds: list[int] | None = None
        """First and last step of the part, its begin and its end."""
        self._level = 0
        self._epoch: int | None = None
        self._first = 0
        """The first step that may be thinned."""
        if steps.num_rows:
            self._epoch = _epochs(steps)[-1]
            self._first = int(steps["step"].to_numpy().max()) + 1
        self._sizes: Counter[int] = Counter()
        self._windows = self._captured = NO_STEPS
        self._compilations: list[pa.Table] = []
        """Events of the compiler in steps that are not complete yet."""
        self._rows_per_step = 1.0
        self._events = self._event_steps = self._loose = 0
        self._notable = self._marked = self._unmarked = NO_STEPS
        """Steps of events: kept in full; without their spans; and not kept, as their events."""
        self._sampled_ns: dict[tuple[str | None, ...], int] = {}
        self._context = spans
        """Spans from before those that are taken next, which are needed to sum these."""

    def take(self, tables: Mapping[str, pa.Table]) -> Mapping[str, Fate]:
        """Sum the steps that are complete, and return what happens to each row."""
        steps, samples = tables["steps"].sort_by("step"), tables["samples"]
        events = tables["events"]
        numbers = steps["step"].to_numpy()
        last = int(numbers.max()) - HELD_STEPS if len(numbers) else -1
        self._windows = np.union1d(self._windows, window_steps(samples))
        captured = marked_steps(samples, CHANGES, CAPTURED_STEP)
        self._captured = np.union1d(self._captured, captured)
        self._compilations.append(events_of(events, *OF_COMPILER))
        complete = steps.filter(pa.array(numbers <= last))
        rows = sum(_count_until(tables[table], last) for table in ("steps", "spans", "collectives"))
        self._rows_per_step = max(1.0, rows / max(1, complete.num_rows))
        if complete.num_rows:
            self._add(complete, tables["spans"])
        fates = {}
        for table in ("steps", "spans", "collectives"):
            notable = self._marked if table == "steps" else self._notable
            fates[table] = self._choose(tables[table], last, notable)
        fates["samples"] = self._choose_readings(samples, "source", "metric", "device")
        fates["events"] = self._choose_readings(events, "kind", "name", "detail")
        self._windows = self._windows[self._windows > last]
        self._captured = self._captured[self._captured > last]
        return fates

    def end_part(self, part: int) -> Mapping[str, Sequence[Any]]:
        """Return the rows of `sums` of the part, and begin the next one."""
        if self._bounds is None:
            return {}
        columns: dict[str, list[Any]] = defaultdict(list)
        first, last, start, end = self._bounds
        for (kind, phase), found in self._sums.items():
            is_whole = phase is None
            row = {
                "part": part,
                "first_step": first,
                "last_step": last,
                "start_ns": start,
                "end_ns": end,
                "epoch": None if self._epoch is None or self._epoch < 0 else self._epoch,
                "level": self._level,
                "kind": kind,
                "phase": phase,
                "steps": found["steps"],
                "sample_count": found["samples"] if is_whole else None,
                "total_ns": found["ns"],
                "lengths": write_lengths(self._lengths[kind]) if is_whole else None,
            }
            for name, value in row.items():
                columns[name].append(value)
        self._sums.clear()
        self._lengths.clear()
        self._bounds, self._level = None, 0
        self._events = self._event_steps = self._loose = 0
        return columns

    def _add(self, steps: pa.Table, spans: pa.Table) -> None:
        """Add complete steps, in their order, to the part's sums."""
        numbers, lengths_ns = steps["step"].to_numpy(), durations(steps)
        nearby = pa.concat_tables([self._context, spans]).unify_dictionaries()
        times = step_times(steps, nearby, numbers)
        counts = steps["sample_count"].to_numpy()
        kinds = self._kinds(steps)
        for place, kind in enumerate(_KINDS):
            of_kind = kinds == place
            if not of_kind.any():
                continue
            whole = {
                "steps": int(of_kind.sum()),
                "samples": int(counts[of_kind].sum()),
                "ns": int(lengths_ns[of_kind].sum()),
            }
            self._sums.setdefault((kind, None), Counter()).update(whole)
            self._lengths[kind].update(count_lengths(lengths_ns[of_kind]))
            for phase, part in zip(times.names, times.parts, strict=True):
                if phase != UNKNOWN:
                    own = {"steps": whole["steps"], "ns": round(float(part[of_kind].sum()))}
                    self._sums.setdefault((kind, phase), Counter()).update(own)
        begin, end = int(steps["start_ns"].to_numpy()[0]), int(steps["end_ns"].to_numpy()[-1])
        first, last = int(numbers[0]), int(numbers[-1])
        if self._bounds is None:
            self._bounds = [first, last, begin, end]
        self._bounds[1], self._bounds[3] = last, end
        per_part = len(numbers) * PART_NS / max(1, end - begin)
        too_many = max(
            per_part / KEPT_PER_PART, per_part * self._rows_per_step / KEPT_ROWS_PER_PART
        )
        self._level = max(self._level, math.ceil(math.log2(max(1.0, too_many))))
        is_last = pc.equal(spans["step"], pa.scalar(last, pa.int64()))
        self._context = spans.filter(is_last)

    def _kinds(self, steps: pa.Table) -> Ints:
        """Return each step's place in `_KINDS`; the first reason counts, as in `select_steps`."""
        numbers = steps["step"].to_numpy()
        epochs = _epochs(steps)
        before = epochs[0] if self._epoch is None else self._epoch
        sizes = steps["sample_count"].to_numpy()
        found, counts = np.unique(sizes, return_counts=True)
        self._sizes.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        least = least_whole_batch(self._sizes)
        if len(self._sizes) > _MOST_SIZES:
            self._sizes = Counter(dict(self._sizes.most_common(_MOST_SIZES // 2)))
        reasons = {
            SWITCHED_OFF: ~steps["instrumented"].to_numpy(zero_copy_only=False),
            KERNEL_WINDOW: np.isin(numbers, self._windows),
            EPOCH_START: np.diff(epochs, prepend=[before]) != 0,
            PARTIAL_BATCH: sizes < least,
            CAPTURED: np.isin(numbers, self._captured),
            COMPILING: np.isin(numbers, self._take_compiled(steps)),
        }
        notable = numbers[reasons[COMPILING] | reasons[KERNEL_WINDOW] | reasons[CAPTURED]]
        room = max(0, int(EVENT_ROWS / self._rows_per_step) - self._event_steps)
        self._marked = notable[: max(0, _MOST_EVENTS - self._events)]
        self._unmarked = np.setdiff1d(notable, self._marked)
        self._notable = self._marked[:room]
        self._events += len(self._marked)
        self._event_steps += len(self._notable)
        self._epoch = epochs[-1]
        kinds = np.zeros(len(numbers), dtype=np.int64)
        for reason, applies in reasons.items():
            kinds[(kinds == 0) & applies] = _KINDS.index(reason)
        return kinds

    def _take_compiled(self, steps: pa.Table) -> Ints:
        """Return the steps that compiled, and forget the compilations in them."""
        events = pa.concat_tables(self._compilations).unify_dictionaries()
        found = steps_compiled(steps, events)
        end = steps["end_ns"].to_numpy()[-1]
        self._compilations = [events.filter(pa.array(events["time_ns"].to_numpy() > end))]
        return found

    def _choose(self, rows: pa.Table, last: int, notable: Ints) -> Fate:
        """Keep the rows of sampled steps, a few of none, and hold back those after the last step.

        Rows of other threads in a step that has not ended are in no sum.
        """
        numbers = rows["step"].fill_null(-1).to_numpy()
        carried = numbers > last
        if "thread" in rows.column_names and carried.sum() > MOST_HELD_ROWS:
            is_worker = pc.starts_with(rows["thread"].cast(pa.string()), LOADER_WORKER)
            open_rows = np.flatnonzero((numbers > last + HELD_STEPS) & is_worker.to_numpy())
            carried[open_rows[: max(0, int(carried.sum()) - MOST_HELD_ROWS)]] = False
        is_kept = (numbers < self._first) | (step_levels(numbers) >= self._level)
        is_kept |= np.isin(numbers, notable)
        is_kept &= ~np.isin(numbers, self._unmarked)
        loose = np.flatnonzero(numbers < 0)
        is_kept[loose[max(0, LOOSE_ROWS - self._loose) :]] = False
        is_kept &= numbers <= last
        self._loose += len(loose)
        return Fate(np.asarray(is_kept), np.asarray(carried))

    def _choose_readings(self, rows: pa.Table, *names: str) -> Fate:
        """Keep what marks steps, and rows that are alike in these columns at a distance."""
        kept, carried = np.zeros((2, rows.num_rows), dtype=bool)
        columns = [rows[name].to_pylist() for name in ("time_ns", *names)]
        for row, (time_ns, *key_parts) in enumerate(zip(*columns, strict=True)):
            key = tuple(key_parts)
            is_event = key[0] in _MARKING and self._events < _MOST_EVENTS
            self._events += is_event
            if not is_event and time_ns < self._sampled_ns.get(key, 0) + SAMPLE_GAP_NS:
                continue
            self._sampled_ns[key] = time_ns
            kept[row] = True
        return Fate(kept, carried)


def _count_until(rows: pa.Table, last: int) -> int:
    return int((rows["step"].fill_null(-1).to_numpy() <= last).sum())


def _epochs(steps: pa.Table) -> list[int]:
    """Return the epoch of each step, -1 if it is not known."""
    return [-1 if epoch is None else max(-1, epoch) for epoch in steps["epoch"].to_pylist()]
