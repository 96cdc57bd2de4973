"""The slowdown of a job by its stragglers, and the parts of the job that it comes from.

S is the time of the replayed steps in relation to that of ideal ones, in which each operation takes
the mean (communication: the median) of its type. A part's slowdown is the same if only that part
keeps its measured durations. The share of a part is how much of the slowdown goes if it alone
becomes ideal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profkit.analysis.estimate import Floats
from profkit.analysis.whatif.operations import (
    BACKWARD_RECEIVE,
    BACKWARD_SEND,
    FORWARD_RECEIVE,
    FORWARD_SEND,
)
from profkit.analysis.whatif.replay import Replay, measured_step_times

SLOWEST_SHARE = 0.03
"""The share of workers that M_W makes ideal."""

MERGED = {
    FORWARD_SEND: "forward-pp-comm", FORWARD_RECEIVE: "forward-pp-comm",
    BACKWARD_SEND: "backward-pp-comm", BACKWARD_RECEIVE: "backward-pp-comm",
}  # fmt: skip
"""Types that share a slowdown: both sides of a message end together."""


@dataclass(frozen=True, eq=False)
class Slowdown:
    """The slowdown of a job. Times are in ns per step, in the order of `steps`."""

    steps: tuple[int, ...]
    excluded_steps: int
    measured_ns: Floats
    replayed_ns: Floats
    """Without the delays of launches."""
    ideal_ns: Floats
    whole: float
    """S."""
    by_kind: Mapping[str, float]
    """S_t."""
    by_data_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    last_stage_share: float
    """M_S."""
    slowest_workers: tuple[tuple[int, int], ...]
    """Data-parallel rank and stage of the slowest workers."""
    slowest_workers_share: float
    """M_W."""

    def of_worker(self, data_rank: int, stage: int) -> float:
        """Return S_w: the smaller slowdown of the worker's stage and its data-parallel rank."""
        return min(self.by_data_rank[data_rank], self.by_stage[stage])

    @property
    def replay_error(self) -> float:
        """The mean difference between the replayed and the measured steps, as a share."""
        return float(np.mean(np.abs(self.replayed_ns - self.measured_ns) / self.measured_ns))


def find_slowdown(replay: Replay) -> Slowdown:
    """Return the slowdown of a job and of each of its parts."""
    operations = replay.grid.operations
    kind = np.array([_merged(operations.kinds[each]) for each in replay.kind.tolist()])
    every_node, every_rank = replay.stage >= 0, replay.grid.data_ranks >= 0
    kinds, stages = np.unique(kind), np.unique(replay.stage)
    data_ranks = replay.grid.data_ranks
    every = replay.choose(every_node, every_rank)
    last_stage = replay.choose(replay.stage == stages[-1], every_rank)
    scenarios = [every, ~every, ~last_stage]
    for labels, own in ((kinds, kind), (stages, replay.stage)):
        for label in labels:
            scenarios.append(replay.choose(own == label, every_rank))
    for data_rank in data_ranks:
        scenarios.append(replay.choose(every_node, data_ranks == data_rank))
    times = replay.step_times(scenarios)
    replayed, ideal, without_last = times[:3]
    ratios = iter((times[3:].mean(axis=1) / ideal.mean()).tolist())
    by_kind = dict(zip(kinds.tolist(), ratios, strict=False))
    by_stage = dict(zip(stages.tolist(), ratios, strict=False))
    by_data_rank = dict(zip(data_ranks.tolist(), ratios, strict=False))
    slowest = _slowest_workers(replay, by_data_rank, by_stage)
    without = every.copy()
    for data_rank, stage in slowest:
        without &= ~replay.choose(replay.stage == stage, data_ranks == data_rank)
    (without_slowest,) = replay.step_times([without])
    return Slowdown(
        steps=tuple(replay.steps.tolist()),
        excluded_steps=replay.grid.excluded,
        measured_ns=measured_step_times(replay.grid),
        replayed_ns=replayed,
        ideal_ns=ideal,
        whole=float(replayed.mean() / ideal.mean()),
        by_kind=by_kind,
        by_data_rank=by_data_rank,
        by_stage=by_stage,
        last_stage_share=_share(replayed, ideal, without_last),
        slowest_workers=slowest,
        slowest_workers_share=_share(replayed, ideal, without_slowest),
    )


def _merged(kind: str) -> str:
    return MERGED.get(kind, kind)


def _slowest_workers(
    replay: Replay, by_data_rank: Mapping[int, float], by_stage: Mapping[int, float]
) -> tuple[tuple[int, int], ...]:
    """Return the slowest workers by S_w; of equal ones, those with the lowest rank."""
    operations, rows = replay.grid.operations, replay.grid.row[:, 0]
    columns = (operations.rank, operations.data_rank, operations.stage)
    workers = np.unique(np.stack([column[rows].ravel() for column in columns]), axis=1)
    found = []
    for rank, data_rank, stage in workers.T.tolist():
        found.append((-min(by_data_rank[data_rank], by_stage[stage]), rank, data_rank, stage))
    found.sort()
    count = math.ceil(SLOWEST_SHARE * len(found))
    return tuple((data_rank, stage) for _, _, data_rank, stage in found[:count])


def _share(replayed: Floats, ideal: Floats, without: Floats) -> float:
    """Return how much of the slowdown goes; not a number if there is no slowdown."""
    slowdown = float(replayed.mean() - ideal.mean())
    if not slowdown:
        return math.nan
    return float(replayed.mean() - without.mean()) / slowdown
