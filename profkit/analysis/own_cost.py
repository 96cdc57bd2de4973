"""What profkit cost the run: by the price of its hooks, and by switching it off for blocks of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from profkit.analysis.estimate import Estimate, Floats, Ints, student_95
from profkit.analysis.selection import NO_STEPS
from profkit.vocab import COLLECTORS_CPU, OPENING_CPU, WRITER_CPU

BUDGET_SHARE = 0.01
BUDGET_NS = 150_000.0
"""What profkit may cost a step: one of the two, whichever is more."""

FEWEST_BLOCKS = 3
_MOST_PRICE_NS = 1e9
"""A phase that costs a second was not measured: the file was written by somebody else."""

NEIGHBOURS = 8
"""How many measured steps before and after a block it is compared with."""


@dataclass(frozen=True)
class OwnCost:
    """What profkit took of a step, in ns; null where the run did not measure it.

    `opening_ns` is the processor time that a rank spent once, mostly on a thread of its own; it is in no
    other figure.
    Hooks and writer are counted up from prices that were measured in the run. `switched` is the
    difference between steps with and without profkit, in the same run, with its interval: it holds
    whatever the counting overlooks, and is as uncertain as the steps are noisy.
    """

    hooks_ns: float | None
    writer_ns: float | None
    switched: Estimate | None
    collectors_ns: float | None = None
    opening_ns: float | None = None

    @property
    def total_ns(self) -> float | None:
        if self.hooks_ns is None or self.writer_ns is None:
            return None
        return self.hooks_ns + self.writer_ns + (self.collectors_ns or 0.0)

    def exceeds_budget(self, step_ns: float) -> bool:
        """Whether profkit surely cost more than it may: by its count, or by the lower end of the difference."""
        budget = max(BUDGET_NS, BUDGET_SHARE * step_ns)
        surely = (
            self.switched.low
            if self.switched is not None and self.switched.low is not None
            else 0.0
        )
        return surely > budget or (self.hooks_ns or 0.0) > budget


def as_record(cost: OwnCost) -> dict[str, Any]:
    """The cost as `run.json` holds it."""
    switched = cost.switched
    return {
        "hooks_ns_per_step": cost.hooks_ns,
        "writer_ns_per_step": cost.writer_ns,
        "collectors_ns_per_step": cost.collectors_ns,
        "opening_ns": cost.opening_ns,
        "switched_off_ns_per_step": switched
        and {"value": switched.value, "low": switched.low, "high": switched.high},
    }


def own_cost(
    steps: pa.Table, spans: pa.Table, samples: pa.Table, warm_up: int, windows: Ints = NO_STEPS
) -> OwnCost:
    """profkit's cost a step and rank. The writer's time and the collectors' are upper bounds: they run on threads of their own."""
    count = max(1, steps.num_rows)
    price = span_price_ns(samples)
    collectors = _own(samples, COLLECTORS_CPU)
    writer = _own(samples, WRITER_CPU).group_by("rank").aggregate([("value", "max")])
    opening = _own(samples, OPENING_CPU)
    ranks = max(1, pc.count_distinct(opening["rank"]).as_py())
    return OwnCost(
        hooks_ns=None if price is None else price * spans.num_rows / count,
        writer_ns=float(np.sum(writer["value_max"].to_numpy())) / count
        if writer.num_rows
        else None,
        switched=switched_cost(without(steps, windows), warm_up),
        collectors_ns=float(pc.sum(collectors["value"]).as_py()) / count
        if collectors.num_rows
        else None,
        opening_ns=float(pc.sum(opening["value"]).as_py()) / ranks if opening.num_rows else None,
    )


def without(steps: pa.Table, windows: Ints) -> pa.Table:
    """The steps but for those in kernel windows, whose cost is told by itself."""
    return (
        steps.filter(pc.invert(pc.is_in(steps["step"], pa.array(windows.tolist(), pa.int64()))))
        if len(windows)
        else steps
    )


def _own(samples: pa.Table, metric: str) -> pa.Table:
    return samples.filter(
        pc.and_(pc.equal(samples["source"], "profkit"), pc.equal(samples["metric"], metric))
    )


def span_price_ns(samples: pa.Table) -> float | None:
    """What timing one phase cost the loop, as each rank measured it before its first step; null where none did."""
    value: float | None = pc.mean(_own(samples, "span_cost_ns")["value"]).as_py()
    return value if value is not None and 0 <= value < _MOST_PRICE_NS else None


def switched_cost(steps: pa.Table, warm_up: int) -> Estimate | None:
    """The difference between measured steps and those for which profkit was switched off.

    Each block of steps without profkit is compared with the steps around it, so that drift does
    not count, by medians, so that an outlier does not; the interval is over the blocks. `None` where
    there are too few blocks.
    """
    rank = pc.min(steps["rank"])
    own = steps.filter(
        pc.and_(pc.equal(steps["rank"], rank), pc.greater_equal(steps["step"], warm_up))
    ).sort_by("step")
    duration = (own["end_ns"].to_numpy() - own["start_ns"].to_numpy()).astype(np.float64)
    measured = own["instrumented"].to_numpy(zero_copy_only=False)
    edges = np.flatnonzero(np.diff(np.concatenate([[True], measured, [True]]).astype(np.int8)))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    differences = [
        _against_neighbours(duration, measured, begins[lengths == length], length)
        for length in sorted(set(lengths.tolist()))
    ]
    found = np.concatenate([np.empty(0), *differences])
    return _mean_estimate(found[np.isfinite(found)])


def _against_neighbours(
    duration: Floats, measured: npt.NDArray[np.bool_], begins: Ints, length: int
) -> Floats:
    """How much longer the measured steps near each of these blocks are than those in it; NaN where there are none.

    They are taken in blocks as long as it: where some steps are far longer than the others, the median of many
    steps lies lower than that of a few.
    """
    if length > NEIGHBOURS:
        return np.full(len(begins), np.nan)
    medians = np.median(sliding_window_view(duration, length), axis=1)
    whole = np.asarray(sliding_window_view(measured, length).all(axis=1))
    places = begins[:, None] + length * np.array(
        [number for number in range(-(NEIGHBOURS // length), NEIGHBOURS // length + 1) if number]
    )
    there = np.clip(places, 0, len(medians) - 1)
    known = (places == there) & whole[there]
    count = known.sum(axis=1)
    near = np.divide(
        (medians[there] * known).sum(axis=1),
        count,
        out=np.full(len(begins), np.nan),
        where=count > 0,
    )
    return np.asarray(near - medians[begins])


def _mean_estimate(values: Floats) -> Estimate | None:
    count = len(values)
    if count < FEWEST_BLOCKS:
        return None
    mean = float(values.mean())
    half = student_95(count - 1) * float(values.std(ddof=1)) / count**0.5
    return Estimate(mean, mean - half, mean + half)
