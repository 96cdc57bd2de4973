"""Estimates what profkit cost the run, from the price of its hooks and from control steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from profkit.frame.columns import durations, readings_of
from profkit.frame.estimate import Estimate, Floats, Ints, student_95
from profkit.frame.selection import NO_STEPS
from profkit.vocab import (
    COLLECTORS_CPU,
    EYE,
    EYE_CPU,
    MARK_COST,
    OPENING_CPU,
    PATCHED_THREADS,
    SCRIBE_CPU,
    SPAN_COST,
    WRITER_CPU,
)

BUDGET_SHARE = 0.01
"""The share of a step that profkit may cost, if that is more than `BUDGET_NS`."""
BUDGET_NS = 150_000.0
"""The time per step that profkit may cost, however short the step is."""

FEWEST_BLOCKS = 3
"""With fewer blocks of control steps no difference is given."""

SHORT_RUN = 400
"""In longer runs the blocks meet long steps about as often as other steps do."""

MOST_SHIFTS = 120
"""So many other places of the blocks are tried, at most."""

_MOST_PRICE_NS = 1e9
"""A phase that costs a second was not measured: the file was written by another program."""

NEIGHBOURS = 8
"""A block is compared with this many measured steps before and after it."""


@dataclass(frozen=True)
class OwnCost:
    """Time that profkit took of a step, in ns; null if the run did not measure it.

    `opening_ns` is the processor time that a rank spent once, mostly on a thread of its own; it is
    in no other figure. Hooks and writer are counts times prices that were measured in the run.
    `switched` is the difference between measured and control steps of the same run, with its
    interval: it holds whatever the counting overlooks, and is as uncertain as the steps are noisy.
    """

    hooks_ns: float | None
    writer_ns: float | None
    switched: Estimate | None
    collectors_ns: float | None = None
    opening_ns: float | None = None
    eye_ns: float | None = None
    """Processor time of the process outside, for the training thread's stacks; null without one."""

    @property
    def total_ns(self) -> float | None:
        if self.hooks_ns is None or self.writer_ns is None:
            return None
        return self.hooks_ns + self.threads_ns

    @property
    def threads_ns(self) -> float:
        """Processor time beside the loop: of the writers, the collectors and the eye."""
        return (self.writer_ns or 0.0) + (self.collectors_ns or 0.0) + (self.eye_ns or 0.0)

    def exceeds_budget(self, step_ns: float) -> bool:
        """Return True if profkit certainly cost more than its budget.

        Both the count and the lower end of the difference are compared with the budget.
        """
        budget = max(BUDGET_NS, BUDGET_SHARE * step_ns)
        least = 0.0
        if self.switched is not None and self.switched.low is not None:
            least = self.switched.low
        return least > budget or (self.hooks_ns or 0.0) > budget


def as_record(cost: OwnCost) -> dict[str, Any]:
    """Return the cost as `run.json` holds it."""
    switched = None
    if cost.switched is not None:
        difference = cost.switched
        switched = {"value": difference.value, "low": difference.low, "high": difference.high}
    return {
        "hooks_ns_per_step": cost.hooks_ns,
        "writer_ns_per_step": cost.writer_ns,
        "collectors_ns_per_step": cost.collectors_ns,
        "opening_ns": cost.opening_ns,
        "switched_off_ns_per_step": switched,
    }


def own_cost(
    steps: pa.Table,
    samples: pa.Table,
    warm_up: int,
    windows: Ints = NO_STEPS,
    *,
    spans: int,
    marks: int,
    in_all: int | None = None,
) -> OwnCost:
    """Return profkit's cost per step and rank.

    The writer's time and the collectors' are upper bounds: they run on threads of their own.
    `marks` are the boundaries of spans that were marked on the device. `in_all` is the number of
    steps of all ranks, if some of them have no rows.
    """
    switched = switched_cost(without(steps, windows), warm_up)
    if readings_of(samples, "profkit", PATCHED_THREADS).num_rows:
        return OwnCost(None, None, switched)  # a greenlet's clock is the one of the job's thread
    count = max(1, in_all or steps.num_rows)
    price = span_price_ns(samples)
    writer, scribe, eye = (
        readings_of(samples, *metric).group_by("rank").aggregate([("value", "max")])
        for metric in (("profkit", WRITER_CPU), ("profkit", SCRIBE_CPU), (EYE, EYE_CPU))
    )
    collectors = readings_of(samples, "profkit", COLLECTORS_CPU)
    opening = readings_of(samples, "profkit", OPENING_CPU)
    hooks_ns = writer_ns = collectors_ns = opening_ns = eye_ns = None
    if price is not None:
        hooks_ns = (price * spans + mark_price_ns(samples) * marks) / max(1, steps.num_rows)
    if writer.num_rows:
        of_both = [*writer["value_max"].to_pylist(), *scribe["value_max"].to_pylist()]
        writer_ns = float(np.sum(of_both)) / count
    if collectors.num_rows:
        collectors_ns = float(pc.sum(collectors["value"]).as_py()) / count
    if opening.num_rows:
        ranks = max(1, pc.count_distinct(opening["rank"]).as_py())
        opening_ns = float(pc.sum(opening["value"]).as_py()) / ranks
    if eye.num_rows:
        eye_ns = float(np.sum(eye["value_max"].to_numpy())) / count
    return OwnCost(hooks_ns, writer_ns, switched, collectors_ns, opening_ns, eye_ns)


def without(steps: pa.Table, windows: Ints) -> pa.Table:
    """Return the steps outside kernel windows, whose cost is reported separately."""
    if not len(windows):
        return steps
    return steps.filter(pc.invert(pc.is_in(steps["step"], pa.array(windows.tolist(), pa.int64()))))


def span_price_ns(samples: pa.Table) -> float | None:
    """Return what timing one phase cost the loop, as the ranks measured it before step 0."""
    value: float | None = pc.mean(readings_of(samples, "profkit", SPAN_COST)["value"]).as_py()
    if value is None or not 0 <= value < _MOST_PRICE_NS:
        return None
    return value


def mark_price_ns(samples: pa.Table) -> float:
    """Return what an event on the device cost the loop; 0 if no rank has measured it."""
    value = pc.mean(readings_of(samples, "profkit", MARK_COST)["value"]).as_py()
    return value if value is not None and 0 <= value < _MOST_PRICE_NS else 0.0


def switched_cost(steps: pa.Table, warm_up: int) -> Estimate | None:
    """Return how much longer measured steps took than control steps (recording off).

    Each block of control steps is compared with the steps around it, so that drift does not count,
    by medians, so that an outlier does not. The interval is over the blocks; `None` if there are
    too few. In a short run it is at least as wide as what other places of the blocks would show: a
    job that evaluates in every fifth step may do so in no block.
    """
    first_rank = pc.equal(steps["rank"], pc.min(steps["rank"]))
    wanted = pc.and_(first_rank, pc.greater_equal(steps["step"], warm_up))
    own = steps.filter(wanted).sort_by("step")
    duration = durations(own).astype(np.float64)
    measured = own["instrumented"].to_numpy(zero_copy_only=False)
    found = _differences(duration, measured)
    if len(found) < FEWEST_BLOCKS:
        return None
    mean = float(found.mean())
    half = student_95(len(found) - 1) * float(found.std(ddof=1)) / len(found) ** 0.5
    low, high = mean - half, mean + half
    if len(duration) <= SHORT_RUN:
        equal = duration + mean * ~measured  # as if recording cost nothing
        elsewhere = []
        for shift in range(1, len(duration), 1 + len(duration) // MOST_SHIFTS):
            differences = _differences(equal, np.roll(measured, shift))
            if len(differences):
                elsewhere.append(float(differences.mean()))
        least, most = np.quantile(elsewhere, [0.025, 0.975])
        low, high = min(low, mean - float(most)), max(high, mean - float(least))
    return Estimate(mean, low, high)


def _differences(duration: Floats, measured: npt.NDArray[np.bool_]) -> Floats:
    """Return how much longer steps around each block of control steps are than those in it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], measured, [True]]).astype(np.int8)))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    differences = [np.empty(0)]
    for length in np.unique(lengths).tolist():
        blocks = begins[lengths == length]
        differences.append(_compare_with_neighbours(duration, measured, blocks, length))
    found = np.concatenate(differences)
    return found[np.isfinite(found)]


def _compare_with_neighbours(
    duration: Floats, measured: npt.NDArray[np.bool_], begins: Ints, length: int
) -> Floats:
    """Return how much longer the measured steps around each block are than those in it.

    It is NaN if there are none. The neighbours are taken in blocks of the same length: if some
    steps are far longer than the others, the median of many steps is lower than that of a few.
    """
    if length > NEIGHBOURS:
        return np.full(len(begins), np.nan)
    medians = np.median(sliding_window_view(duration, length), axis=1)
    whole = np.asarray(sliding_window_view(measured, length).all(axis=1))
    reach = NEIGHBOURS // length
    offsets = np.arange(-reach, reach + 1)
    places = begins[:, None] + length * offsets[offsets != 0]
    there = np.clip(places, 0, len(medians) - 1)
    known = (places == there) & whole[there]
    count = known.sum(axis=1)
    totals = (medians[there] * known).sum(axis=1)
    near = np.divide(totals, count, out=np.full(len(begins), np.nan), where=count > 0)
    return np.asarray(near - medians[begins])
