"""Selects the steps that the figures are about, and says why the others are excluded."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import number_values, readings_of
from profkit.frame.compiling import MOST_COMPILED_SHARE, compiled_steps
from profkit.frame.estimate import Ints
from profkit.frame.parts import count_kinds
from profkit.trace import Trace
from profkit.trace.sampled import step_levels
from profkit.vocab import CAPTURED_STEP, CHANGES, KERNELS, USED, WINDOW_STEP

WARM_UP = "warm-up"
EPOCH_START = "epoch start"
PARTIAL_BATCH = "partial batch"
KERNEL_WINDOW = "kernel window"
COMPILING = "compiled"
CAPTURED = "lines captured"
SWITCHED_OFF = "profkit switched off"
NOT_ON_ALL_RANKS = "not on all ranks"
THINNED = "not in the sample"
SPANS_LOST = "without spans"

REASONS = (
    *(WARM_UP, NOT_ON_ALL_RANKS, SWITCHED_OFF, KERNEL_WINDOW, EPOCH_START, PARTIAL_BATCH),
    *(CAPTURED, COMPILING),
)
"""The reasons in the order in which they are given: the first that applies to a step counts."""

DEFAULT_WARM_UP = 10
_MOST_WARM_UP = 1_000_000_000
"""A larger number in the configuration would overflow the step numbers."""

FEWEST_OF_A_BATCH, MOST_GAP = 8, 4
"""So many successive steps of a smaller batch are no epoch's end; some may be excluded."""

MOST_LARGER, MOST_SMALLER = 0.05, 0.5
"""Shares of the steps: if more have another batch than the usual one, there is no usual one."""

NO_STEPS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Selection:
    """The steps that are used, ascending, and how many are excluded for each reason."""

    steps: Ints
    left_out: Mapping[str, int]
    which: Mapping[str, Ints] = field(default_factory=dict, compare=False)
    """The steps themselves that are excluded for each reason."""
    level: int = field(default=0, compare=False)
    """The least level of the used steps of a thinned or very large run."""

    def without(self, reason: str, applies: npt.NDArray[np.bool_]) -> Selection:
        """Exclude those of the used steps to which the reason applies."""
        if not applies.any():
            return self
        which = {**self.which, reason: self.steps[applies]}
        left_out = {**self.left_out, reason: int(applies.sum())}
        return Selection(self.steps[~applies], left_out, which, self.level)

    def of_level(self, level: int) -> Selection:
        """Exclude the steps that are not in the sample of this level."""
        if not level:
            return self
        found = dataclasses.replace(self, level=level)
        return found.without(THINNED, step_levels(found.steps) < level)

    def sampled(self, reason: str) -> Ints:
        """Return the excluded steps of the population that the used ones are a sample of."""
        steps = self.which.get(reason, NO_STEPS)
        return steps[step_levels(steps) >= self.level]


def steady_steps(
    trace: Trace, warm_up: int, windows: Ints, compiling: Ints, damaged: Collection[int]
) -> Selection:
    """Return the steps that a run's figures are about; of a thinned run, a sample of them.

    `windows` are steps in which kernels were captured, `compiling` those that compiled, and
    `damaged` the ranks of which some spans could not be read.
    """
    found = select_steps(trace.steps, warm_up=warm_up, windows=windows)
    found = without_captured(found, trace.samples)
    found = found.without(SPANS_LOST, found.steps > last_whole_step(trace, found.steps, damaged))
    compiled = np.isin(found.steps, compiling)
    if not mostly_compiled(trace, compiled):
        found = found.without(COMPILING, compiled)
    if not trace.sums.num_rows:
        return found
    level = pc.max(trace.sums["level"]).as_py()  # each part of the run has the same weight
    return _known_starts(found.of_level(level), trace.steps)


def last_whole_step(trace: Trace, steps: Ints, damaged: Collection[int]) -> int:
    """Return the last step before spans are lost, by damage to the files of these ranks.

    If a rank has no spans at all, no phase of the run is known, and its steps still are.
    """
    last = int(steps.max(initial=0))
    for rank in trace.ranks:
        if rank.rank in damaged and (spans := rank.table("spans")).num_rows:
            last = min(last, (pc.max(spans["step"]).as_py() or 0) - 1)  # the last one may be cut
    return last if last >= steps.min(initial=0) else int(steps.max(initial=0))


def mostly_compiled(trace: Trace, compiled: npt.NDArray[np.bool_]) -> bool:
    """Return true if so many steps compiled that this is how the job runs.

    A thinned run keeps more of the steps that `compiled` than of others: its sums count them.
    """
    some, of_all = int(compiled.sum()), len(compiled)
    if trace.sums.num_rows:
        counts = count_kinds(trace.sums, "steps")
        some, of_all = counts[COMPILING], counts[USED] + counts[COMPILING]
    return some > MOST_COMPILED_SHARE * of_all


def _known_starts(found: Selection, steps: pa.Table) -> Selection:
    """Count a step as an epoch's start only if the step before it was kept.

    Of the others it is not known: they are not in the sample.
    """
    starts = found.which.get(EPOCH_START, NO_STEPS)
    is_known = np.isin(starts - 1, steps["step"].to_numpy())
    if is_known.all():
        return found
    others = np.union1d(found.which.get(THINNED, NO_STEPS), starts[~is_known])
    which = {**found.which, EPOCH_START: starts[is_known], THINNED: others}
    left_out = {reason: len(steps) for reason, steps in which.items() if len(steps)}
    return dataclasses.replace(found, which=which, left_out=left_out)


def without_captured(found: Selection, samples: pa.Table) -> Selection:
    """Exclude steps whose lines were captured."""
    captured = marked_steps(samples, CHANGES, CAPTURED_STEP)
    return found.without(CAPTURED, np.isin(found.steps, captured))


def without_marked(
    found: Selection, steps: pa.Table, samples: pa.Table, events: pa.Table
) -> Selection:
    """Exclude steps that captures or compilations have made longer."""
    found = without_captured(found, samples)
    compiled = np.isin(found.steps, compiled_steps(steps, events))
    if compiled.sum() <= MOST_COMPILED_SHARE * len(compiled):
        found = found.without(COMPILING, compiled)
    return found


def including_batches(found: Selection) -> Ints:
    """Return the used steps, with successive steps of a smaller batch.

    At the end of an epoch, few steps are smaller. More of them are a job that changes its batch.
    """
    partial = found.sampled(PARTIAL_BATCH)
    blocks = np.split(partial, np.flatnonzero(np.diff(partial) > MOST_GAP) + 1)
    kept = [block for block in blocks if len(block) >= FEWEST_OF_A_BATCH]
    return np.sort(np.concatenate([found.steps, *kept]))


def warm_up_of(trace: Trace, steps: pa.Table) -> int:
    """Return the warm-up that the run was configured with, or a default.

    The default is at most a fifth of the steps.
    """
    if trace.own_warm_up is not None:
        return trace.own_warm_up
    configured = trace.manifest.config.get("warmup")
    if isinstance(configured, int) and not isinstance(configured, bool):
        return min(max(0, configured), _MOST_WARM_UP)
    return min(DEFAULT_WARM_UP, len(pc.unique(steps["step"])) // 5)


def select_steps(steps: pa.Table, *, warm_up: int, windows: Ints = NO_STEPS) -> Selection:
    """Return the steady steps of a run, without warm-up, epoch starts and partial batches.

    A step is judged over all its ranks, and has one reason: the first that applies in the order
    of this function. The first step of an epoch is slow if workers start, so it is never used;
    the first epoch's start is part of the warm-up. `windows` are the steps in which kernels were
    captured or captures read, on any rank: they are slower than the job's own.
    """
    numbers, position = number_values(steps["step"].to_numpy())
    everywhere = _once_on_each_rank(steps["rank"].to_numpy(), position, len(numbers))
    off = ~steps["instrumented"].to_numpy(zero_copy_only=False)
    epochs = np.full(len(numbers), -1, dtype=np.int64)
    known = steps["epoch"].fill_null(-1).to_numpy()
    if len(numbers) == len(position):  # one rank, for which the next line takes long
        epochs[position] = np.maximum(known, -1)
    else:
        np.maximum.at(epochs, position, known)
    reasons = {
        WARM_UP: numbers < numbers[:1] + warm_up,
        NOT_ON_ALL_RANKS: ~everywhere,
        SWITCHED_OFF: np.bincount(position, weights=off, minlength=len(numbers)) > 0,
        KERNEL_WINDOW: np.isin(numbers, windows),
        EPOCH_START: np.diff(epochs, prepend=epochs[:1]) != 0,
        PARTIAL_BATCH: _partial_batches(steps["sample_count"].to_numpy(), position, everywhere),
    }
    used = np.ones(len(numbers), dtype=bool)
    left_out: dict[str, int] = {}
    which: dict[str, Ints] = {}
    for reason, applies in reasons.items():
        excluded = numbers[used & applies]
        if len(excluded):
            which[reason] = excluded
            left_out[reason] = len(excluded)
        used &= ~applies
    return Selection(numbers[used], left_out, which)


def _once_on_each_rank(rank: Ints, position: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Return which steps have one row of every rank; a damaged trace may have two of one."""
    rows = np.bincount(position, minlength=count)
    if len(rank) and rank.min() == rank.max():
        return np.asarray(rows == 1)
    ranks, which = number_values(rank)
    is_there = np.zeros((count, len(ranks)), dtype=bool)
    is_there[position, which] = True
    return np.asarray(is_there.all(axis=1) & (rows == len(ranks)))


def _partial_batches(
    samples: Ints, position: Ints, everywhere: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return which steps have fewer samples than usual."""
    totals = np.bincount(position, weights=samples, minlength=len(everywhere)).astype(np.int64)
    values, frequency = np.unique(totals[everywhere], return_counts=True)
    least = least_whole_batch(dict(zip(values.tolist(), frequency.tolist(), strict=True)))
    return np.asarray(totals < least)


def least_whole_batch(counts: Mapping[int, int]) -> int:
    """Return the number of samples below which a batch is partial, from how often each occurs.

    That is the most frequent one, or the larger of two. If many batches are larger, or most are
    smaller, the job has no usual batch: of batches that are filled up to a number of tokens, the
    small ones are as whole as the others.
    """
    if not counts:
        return 0
    usual = max(counts, key=lambda size: (counts[size], size))
    larger = sum(count for size, count in counts.items() if size > usual)
    smaller = sum(count for size, count in counts.items() if size < usual)
    steps = counts[usual] + larger + smaller
    varies = larger > MOST_LARGER * steps or smaller > MOST_SMALLER * steps
    return 0 if varies else usual


_MOST_STEP = 2**53
"""Larger step numbers have no exact float, so they are not step numbers."""


def window_steps(samples: pa.Table) -> Ints:
    """Return the steps in which a window was open or being read on some rank."""
    return marked_steps(samples, KERNELS, WINDOW_STEP)


def marked_steps(samples: pa.Table, source: str, metric: str) -> Ints:
    """Return the steps that the readings of a metric name, on any rank."""
    values = readings_of(samples, source, metric)["value"].to_numpy()
    valid = np.isfinite(values) & (values >= 0) & (values < _MOST_STEP)
    return np.unique(values[valid].astype(np.int64))
