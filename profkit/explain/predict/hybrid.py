"""Answers about hybrid-parallel jobs that were recorded per operation."""

from __future__ import annotations

import dataclasses

import numpy as np

from profkit.analysis.estimate import Floats
from profkit.analysis.whatif.operations import COMPUTES, ReplayError
from profkit.analysis.whatif.replay import Replay, prepare
from profkit.analysis.whatif.run_operations import COORDINATES, operations_of
from profkit.analysis.whatif.slowdown import Slowdown, find_slowdown
from profkit.explain.predict.job import Job, from_steps, unanswered, why_replay_is_off
from profkit.explain.predict.prediction import NO_BUBBLE, Prediction, Question
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
    without, words = replay_without(replay, found, question)
    less = (found.replayed_ns - without)[None, :]
    shown = percent(found.replay_error)
    replayed = f"a replay of the operations of {plural(len(found.steps), 'step')}"
    basis = (words, f"{replayed}; it differs from the measured steps by {shown}")
    leaves = ("delays of launches, which stay as they are",)
    return from_steps(
        job, question, found.measured_ns, less,
        error=found.replay_error, basis=basis, leaves=leaves,
    )  # fmt: skip


def replay_without(replay: Replay, found: Slowdown, question: Question) -> tuple[Floats, str]:
    """Return the replayed steps of the changed job, and what was changed."""
    data_ranks, stages = replay.grid.data_ranks, np.unique(replay.stage)
    every = replay.choose(replay.stage >= 0, data_ranks >= 0)
    if question.kind == NO_BUBBLE:
        return longest_stage(replay), "each stage computes without a pause"
    if question.cause == LAST:
        ideal = replay.choose(replay.stage == stages[-1], data_ranks >= 0)
        words = "operations of the last stage take the mean of their type"
    elif question.cause == UNEVEN:
        ideal, words = every, "all operations take the mean of their type"
    else:
        ideal = ~every
        for data_rank, stage in found.slowest_workers:
            ideal = ideal | replay.choose(replay.stage == stage, data_ranks == data_rank)
        slowest = ", ".join(map("{0[0]} on stage {0[1]}".format, found.slowest_workers))
        words = f"operations of data-parallel rank {slowest} take the mean of their type"
    (times,) = replay.step_times([every & ~ideal])
    return times, words


def longest_stage(replay: Replay) -> Floats:
    """Return the computing time of the busiest stage in each step."""
    kinds = replay.grid.operations.kinds
    computes = np.isin(np.array(kinds)[replay.kind], COMPUTES)
    sums = []
    for stage in np.unique(replay.stage):
        own = computes & (replay.stage == stage)
        sums.append(replay.measured[own].sum(axis=0))
    return np.asarray(np.stack(sums).max(axis=(0, 2)))
