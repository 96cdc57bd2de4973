"""The gain of a faster phase, from the blocks of steps in which all others were slowed.

In such a block the job is one whose phase is faster, at a slower pace. So the mean of its steps,
divided by the pace, is the step of that job. Each block is compared with the steps around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profkit.analysis.apart import find_apart
from profkit.analysis.columns import durations
from profkit.analysis.estimate import Estimate, Floats, Ints
from profkit.analysis.parts import count_kinds, count_rank_steps, in_parts
from profkit.analysis.selection import EXPERIMENT as SLOWED
from profkit.analysis.selection import NO_STEPS, THINNED, steady_steps
from profkit.analysis.slowed import slowed_steps, unlike_steps
from profkit.analysis.student import student_of_few
from profkit.trace import Trace
from profkit.vocab import EXPERIMENT_FACTOR, EXPERIMENT_SETTLES

FEWEST_BLOCKS = 4
"""With fewer blocks, an interval over them says nothing."""

AROUND = 60
"""So many steps on either side of a block are compared with it."""


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


def find_experiments(trace: Trace, usual: Ints) -> dict[str, Experiment]:
    """Return the experiments of a run by phase; its figures are about the `usual` steps.

    Every rank has each step of a block, or the block is not used.
    """
    slowed = slowed_steps(trace.samples)
    if trace.sums.num_rows:  # the steps around a block are kept, but most are not in the sample
        others = steady_steps(trace).which.get(THINNED, NO_STEPS)
        usual = np.union1d(usual, others)
    if not slowed or not len(usual):
        return {}
    numbers, wall = mean_steps(trace.steps)
    found = {}
    for phase, steps in slowed.items():
        experiment = _compare(phase, steps, numbers, wall, usual)
        if experiment is not None:
            found[phase] = experiment
    return found


def mean_steps(steps: pa.Table) -> tuple[Ints, Floats]:
    """Return the steps that all ranks have, and the mean of their lengths over the ranks."""
    numbers, place = np.unique(steps["step"].to_numpy(), return_inverse=True)
    counts = np.bincount(place)
    wall = np.bincount(place, weights=durations(steps)) / counts
    everywhere = counts == counts.max()
    return numbers[everywhere], wall[everywhere]


def _compare(
    phase: str, steps: Ints, numbers: Ints, wall: Floats, usual: Ints
) -> Experiment | None:
    """Return the blocks of one phase next to the steps around them; `None` if there are none."""
    slowed, around, drift, used = [], [], [], 0
    for block in np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1):
        settled = wall[np.isin(numbers, block[EXPERIMENT_SETTLES:])]
        near = usual[np.abs(usual - block.mean()) <= AROUND + len(block) / 2]
        others = wall[np.isin(numbers, near)]
        if len(settled) < 2 or len(settled) < len(block) - EXPERIMENT_SETTLES or not len(others):
            continue
        half = len(settled) // 2
        slowed.append(settled.mean() / EXPERIMENT_FACTOR)
        around.append(others.mean())
        drift.append((settled[half:].mean() - settled[:half].mean()) / settled.mean())
        used += len(settled)
    if not slowed:
        return None
    return Experiment(phase, np.array(slowed), np.array(around), used, np.array(drift))


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
