"""Answers about hybrid-parallel jobs that were recorded per operation."""

from __future__ import annotations

import dataclasses

import numpy as np

from profkit.analysis.estimate import Floats
from profkit.analysis.whatif.operations import COMMUNICATES, COMPUTES, ReplayError
from profkit.analysis.whatif.replay import Replay, prepare
from profkit.analysis.whatif.run_operations import COORDINATES, operations_of
from profkit.analysis.whatif.slowdown import Slowdown, find_slowdown
from profkit.explain.predict.alone import require
from profkit.explain.predict.job import Job, from_steps, unanswered, why_replay_is_off
from profkit.explain.predict.prediction import NO_BUBBLE, WITHOUT, Prediction, Question
from profkit.explain.predict.shown import MIN_SHOWN_SHARE, NotShownError
from profkit.text import percent, plural

LATE, LAST, UNEVEN = "late_rank", "long_last_stage", "uneven_stages"


def ask_hybrid(job: Job, question: Question) -> Prediction | None:
    """Return the answer for a job with the places of its ranks, or `None` if it is none."""
    asked = question.kind == NO_BUBBLE or question.cause in (LATE, LAST, UNEVEN)
    ranks = job.evidence.trace.ranks
    if not asked or not ranks or COORDINATES not in ranks[0].manifest.config:
        return None
    try:
        replay = prepare(operations_of(job.evidence.trace))
        found = find_slowdown(replay)
    except ReplayError:
        return None
    if why := why_replay_is_off(found.replay_error):
        answer = unanswered(job, question, why)
        return dataclasses.replace(answer, replay_error=found.replay_error)
    try:
        without, words = replay_without(replay, found, question)
        if question.kind == WITHOUT:
            saved = (found.replayed_ns.mean() - without.mean()) / found.replayed_ns.mean()
            require(saved, "it costs")
    except NotShownError as error:
        return unanswered(job, question, f"the run does not show this cause alone: {error}")
    less = (found.replayed_ns - without)[None, :]
    shown = percent(found.replay_error)
    replayed = f"a replay of the operations of {plural(len(found.steps), 'step')}"
    basis = (words, f"{replayed}; it differs from the measured steps by {shown}")
    leaves = ["delays of launches, which stay as they are"]
    if question.cause in (LAST, UNEVEN):
        leaves.append("if the model can be divided so")
        if len(replay.grid.data_ranks) == 1:
            leaves.append("a late rank, which looks like a long stage without another data rank")
    return from_steps(
        job, question, found.measured_ns, less,
        error=found.replay_error, basis=basis, leaves=leaves,
    )  # fmt: skip


def replay_without(replay: Replay, found: Slowdown, question: Question) -> tuple[Floats, str]:
    """Return the replayed steps of the changed job, and what was changed.

    Raises `NotShownError` if the job does not have the cause.
    """
    if question.kind == NO_BUBBLE:
        return longest_stage(replay), "each stage computes without a pause"
    data_ranks, last = replay.grid.data_ranks, int(replay.stage.max())
    every = replay.choose(replay.stage >= 0, data_ranks >= 0)
    step_ns, usual = float(found.replayed_ns.mean()), usual_times(replay)
    work = np.bincount(replay.stage, usual)[np.unique(replay.stage)]
    late = late_workers(replay, found, usual, MIN_SHOWN_SHARE * step_ns)
    if question.cause == UNEVEN:
        require((work.max() - work.mean()) / step_ns, "the longest stage is above the mean by")
        level = dataclasses.replace(replay, measured=level_stages(replay, usual))
        (times,) = level.step_times([every])
        return times, "each stage computes as long as the mean of the stages"
    if question.cause == LAST:
        require((work[-1] - work.mean()) / step_ns, "the last stage is above the mean by")
        if any(stage == last for _, stage in late):
            raise NotShownError("a rank on the last stage is late: ask for late_rank")
        ideal = replay.choose(replay.stage == last, data_ranks >= 0)
        words = "operations of the last stage take the mean of their type"
    else:
        if not late:
            raise NotShownError("the slowest rank computes no longer than others on its stage")
        ideal = ~every
        for data_rank, stage in found.slowest_workers:
            ideal = ideal | replay.choose(replay.stage == stage, data_ranks == data_rank)
        slowest = ", ".join(map("{0[0]} on stage {0[1]}".format, found.slowest_workers))
        words = f"operations of data-parallel rank {slowest} take the mean of their type"
    (times,) = replay.step_times([every & ~ideal])
    return times, words


def usual_times(replay: Replay) -> Floats:
    """Return how long each operation that only computes usually takes on its stage.

    It is the lower median of the means of the data-parallel ranks: slow ones do not count.
    """
    kinds, usual = replay.grid.operations.kinds, np.zeros(len(replay.kind))
    for kind, stage in np.unique(np.stack([replay.kind, replay.stage]), axis=1).T.tolist():
        if kinds[kind] not in COMMUNICATES:
            own = (replay.kind == kind) & (replay.stage == stage)
            means = replay.measured[own].mean(axis=(0, 1))
            usual[own] = np.quantile(means, 0.5, method="lower")
    return usual


def late_workers(
    replay: Replay, found: Slowdown, usual: Floats, least_ns: float
) -> list[tuple[int, int]]:
    """Return those of the slowest workers that compute so much longer than is usual there."""
    late = []
    for data_rank, stage in found.slowest_workers:
        own = (replay.stage == stage) & (usual > 0)
        times = replay.measured[own][:, :, replay.grid.data_ranks == data_rank]
        if times.mean(axis=(1, 2)).sum() - usual[own].sum() >= least_ns:
            late.append((data_rank, stage))
    return late


def level_stages(replay: Replay, usual: Floats) -> Floats:
    """Return the durations if all stages computed as long; within a stage, ranks still differ."""
    level = np.zeros_like(usual)
    for kind in np.unique(replay.kind):
        own = replay.kind == kind
        level[own] = usual[own].mean()
    factor = np.divide(level, usual, out=np.ones_like(usual), where=usual > 0)
    return replay.measured * factor[:, None, None]


def longest_stage(replay: Replay) -> Floats:
    """Return the computing time of the busiest stage in each step."""
    kinds = replay.grid.operations.kinds
    computes = np.isin(np.array(kinds)[replay.kind], COMPUTES)
    sums = []
    for stage in np.unique(replay.stage):
        own = computes & (replay.stage == stage)
        sums.append(replay.measured[own].sum(axis=0))
    return np.asarray(np.stack(sums).max(axis=(0, 2)))
