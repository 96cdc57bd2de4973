"""The gain of a faster phase, from the blocks of steps in which all others were slowed.

In such a block the job is one whose phase is faster, at a slower pace. So the mean of its steps,
divided by the pace, is the step of that job. Each block is compared with the steps around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.apart import find_apart
from profkit.analysis.columns import durations
from profkit.analysis.compiling import compiled_steps
from profkit.analysis.estimate import Estimate, Floats, Ints
from profkit.analysis.kernels.windows import marked_steps
from profkit.analysis.parts import count_kinds, count_rank_steps, in_parts
from profkit.analysis.selection import EXPERIMENT as SLOWED
from profkit.analysis.selection import NO_STEPS, THINNED, steady_steps
from profkit.analysis.slowed import slowed_steps, unlike_steps
from profkit.analysis.student import student_of_few
from profkit.trace import Trace
from profkit.vocab import EXPERIMENT_CUT, EXPERIMENT_FACTOR, EXPERIMENT_SETTLES, EXPERIMENTS, Phase

FEWEST_BLOCKS = 4
"""With fewer blocks, an interval over them says nothing."""

AROUND = 60
"""So many steps on either side of a block are compared with it."""

MOST_BESIDE = 0.1
"""A step that does more in `other` than most, by this share of a step, evaluates or saves."""


@dataclass(frozen=True)
class Experiment:
    """The blocks about one phase, next to the steps around each of them, in ns per step."""

    phase: str
    slowed: Floats
    """The mean step of each block, once it has settled, divided by the pace."""
    around: Floats
    """The mean of the steps around each block."""
    used: int
    """Steps of the blocks that the means are over."""
    drift: Floats
    """What each block still changed by from its first half to its second, as a share."""
    dropped: int = 0
    """Blocks that are not used, because a step of theirs is not like those around it."""
    beside_ns: float = 0.0
    """What a recorded step takes on average that no block slows, as evaluation does."""

    @property
    def share(self) -> Estimate:
        """The step with the faster phase, as a share of the recorded one."""
        whole, count = self.around.mean(), len(self.slowed)
        value = float(self.slowed.mean() / whole)
        if count < FEWEST_BLOCKS:
            return Estimate(value)
        # The usual error of a ratio of means: what each block leaves over.
        left = (self.slowed - value * self.around) / whole
        error = float(left.std(ddof=1)) / math.sqrt(count)
        half = student_of_few(count - 1) * error
        return Estimate(value, max(0.0, value - half), value + half)


def find_experiments(trace: Trace, usual: Ints, fit: Ints) -> dict[str, Experiment]:
    """Return the experiments of a run by phase; its figures are about the `usual` steps.

    A block is used if all its steps are `fit`: but for the experiment, they would be usual. So no
    epoch begins in it, nothing compiles, and no rank evaluates.
    """
    slowed = slowed_steps(trace.samples)
    if trace.sums.num_rows:  # the steps around a block are kept, but most are not in the sample
        others = steady_steps(trace).which.get(THINNED, NO_STEPS)
        usual = np.union1d(usual, others)
    if not slowed or not len(usual):
        return {}
    steps = _read_steps(trace, usual, fit)
    found = {}
    for phase, numbers in slowed.items():
        found[phase] = _compare(phase, numbers, steps)
    return found


@dataclass(frozen=True)
class _Steps:
    """The steps that all ranks have, with what their lengths are compared by."""

    numbers: Ints
    net: Floats
    """Their lengths without the phase `other`, in which nothing is slowed."""
    usual: Ints
    """Those of which the figures of the run are, without those that evaluate."""
    fit: Ints
    """Those of blocks that are like these."""
    beside_ns: float


def _read_steps(trace: Trace, usual: Ints, fit: Ints) -> _Steps:
    numbers, wall = mean_steps(trace.steps)
    mean, most = _time_beside(trace, numbers)
    used = np.isin(numbers, usual)
    if not used.any():
        return _Steps(numbers, wall, usual[:0], fit[:0], 0.0)
    usually = float(np.median(most[used])) + MOST_BESIDE * float(np.median(wall[used]))
    evaluates = most > usually
    # After an evaluation the queue of batches is full, and ranks that had none still wait.
    evaluates[1:] |= evaluates[:-1]
    compiled = compiled_steps(trace.steps, trace.samples)
    if not np.isin(usual, compiled).any():  # else that is how the job runs
        fit = np.setdiff1d(fit, compiled)
    fit = np.setdiff1d(fit, marked_steps(trace.samples, EXPERIMENTS, EXPERIMENT_CUT))
    plain = used & ~evaluates
    net = wall - mean
    beside_ns = 0.0
    if plain.any():
        beside_ns = float(wall[used].mean() - net[plain].mean())
    return _Steps(numbers, net, numbers[plain], np.intersect1d(fit, numbers[~evaluates]), beside_ns)


def _time_beside(trace: Trace, numbers: Ints) -> tuple[Floats, Floats]:
    """Return the time in the phase `other` of each step: the mean of the ranks, and the most."""
    spans = trace.spans
    is_beside = pc.and_(pc.equal(spans["phase"], Phase.OTHER.value), pc.equal(spans["depth"], 0))
    rows = spans.filter(is_beside)
    step = rows["step"].fill_null(-1).to_numpy()
    known = np.isin(step, numbers)
    ranks, rank = np.unique(rows["rank"].to_numpy()[known], return_inverse=True)
    times = np.zeros((max(1, len(ranks)), len(numbers)))
    np.add.at(times, (rank, np.searchsorted(numbers, step[known])), durations(rows)[known])
    count = max(1, len(pc.unique(trace.steps["rank"])))
    return times.sum(axis=0) / count, times.max(axis=0)


def mean_steps(steps: pa.Table) -> tuple[Ints, Floats]:
    """Return the steps that all ranks have, and the mean of their lengths over the ranks."""
    numbers, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    counts = np.bincount(place)
    wall = np.bincount(place, weights=durations(steps)) / counts
    everywhere = counts == counts.max()
    return numbers[everywhere], wall[everywhere]


def _compare(phase: str, slowed_numbers: Ints, steps: _Steps) -> Experiment:
    """Return the blocks of one phase next to the steps around them."""
    slowed, around, drift, used, dropped = [], [], [], 0, 0
    for block in np.split(slowed_numbers, np.flatnonzero(np.diff(slowed_numbers) != 1) + 1):
        near = steps.usual[np.abs(steps.usual - block.mean()) <= AROUND + len(block) / 2]
        others = steps.net[np.isin(steps.numbers, near)]
        settled = steps.net[np.isin(steps.numbers, block[EXPERIMENT_SETTLES:])]
        if len(settled) < 2 or not np.isin(block, steps.fit).all() or not len(others):
            dropped += 1
            continue
        half = len(settled) // 2
        slowed.append(settled.mean() / EXPERIMENT_FACTOR)
        around.append(others.mean())
        drift.append((settled[half:].mean() - settled[:half].mean()) / settled.mean())
        used += len(settled)
    return Experiment(
        phase, np.array(slowed), np.array(around), used, np.array(drift), dropped, steps.beside_ns
    )


def cost_share(trace: Trace, usual: Ints) -> float:
    """Return what the blocks cost the run, as a share of the time of its steps."""
    if trace.sums.num_rows:
        return _cost_share_of_sums(trace)
    numbers, wall = mean_steps(trace.steps)
    unlike = np.isin(numbers, unlike_steps(trace.samples))
    known = np.isin(numbers, usual)
    if not unlike.any() or not known.any():
        return 0.0
    return float((wall[unlike] - wall[known].mean()).sum() / wall.sum())


def _cost_share_of_sums(trace: Trace) -> float:
    """Return the same of a thinned run; slowed control steps count as often as in its blocks."""
    found = steady_steps(trace)
    own, kept = found.which.get(SLOWED, NO_STEPS), unlike_steps(trace.samples)
    apart = find_apart(trace.steps, found, trace.sums)
    excess_ns = sum(each.excess_ns for each in apart if each.reason == SLOWED)
    in_full = ~in_parts(trace.sums, trace.steps)
    total_ns = durations(trace.steps)[in_full].sum()
    total_ns += sum(count_kinds(trace.sums, "total_ns").values())
    all_ns = excess_ns * count_rank_steps(trace.steps, trace.sums)
    return float(all_ns / total_ns * np.isin(kept, trace.steps["step"]).sum() / max(1, len(own)))
