"""A run without a cause that `explain` found by comparing it with another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from profkit.analysis.whatif.changes import reduce_evenly, shift_parts, without_transfers
from profkit.analysis.whatif.step_model import PARTS, StepModel
from profkit.explain.ledger import Ledger
from profkit.explain.predict.job import Job, open_job, predict
from profkit.explain.predict.prediction import WITHOUT, Question
from profkit.explain.rules.base import Case, Cause
from profkit.frame.estimate import Estimate
from profkit.frame.notices import is_log
from profkit.vocab import Phase

MOST_STEPS_OF_RANKS = 100_000
"""Steps of all ranks, beyond which `explain` replays nothing."""


def step_factor(ledger: Ledger, job: Job) -> float:
    """Return the factor from a step of the base's batch to one of the job's."""
    return 1 / ledger.batch_factor(job.evidence.step_samples)


def predict_without(case: Case, causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Return the causes with the step of the target without each cause that the step includes.

    Very large runs are not replayed for it. Logs are not either: their lines are means, which show
    no scatter.
    """
    rows = case.after.costs.steps * case.after.costs.ranks
    is_short = rows <= MOST_STEPS_OF_RANKS and not is_log(case.after.trace)
    if not is_short or not any(map(_has_cost, causes)):
        return tuple(causes)
    job = open_job(case.after, with_earlier=False)
    factor, found = step_factor(case.ledger, job), []
    for cause in causes:
        step = None
        is_in_step = not cause.is_gain and not cause.apart
        if job.model is not None and cause.cost_ns is not None and is_in_step:
            models = remove_explained(job, job.model, cause, cause.cost_ns, factor)
            answer = predict(job, Question(WITHOUT, cause=cause.kind), models)
            step = answer.step_on_same_machine
        found.append(dataclasses.replace(cause, without_ns=step))
    return tuple(found)


def _has_cost(cause: Cause) -> bool:
    return cause.cost_ns is not None and not cause.is_gain


def remove_explained(
    job: Job, model: StepModel, cause: Cause, cost: Estimate, factor: float
) -> list[StepModel]:
    """Return the run without a cause: with its cost, and with the ends of its interval."""
    models = []
    for amount in (cost.value, cost.low, cost.high):
        if amount is not None:
            models.append(_less(job, model, cause, amount * factor))
    return models


def _less(job: Job, model: StepModel, cause: Cause, amount: float) -> StepModel:
    if cause.ranks:
        return less_late(job, model, cause.ranks[0], cause.rows, amount)
    exchange, sizes = Phase.ALLREDUCE.value, dict[str, float]()
    exposed = float((model.wall.mean(axis=1) - model.own_work().mean(axis=1)).mean())
    for row in cause.rows:
        if row == exchange and model.members:
            sizes[row] = max(0.0, exposed)
        elif row in PARTS:
            sizes[row] = max(0.0, float(model.part(row).mean()))
    whole = sum(sizes.values())
    if not whole:
        return reduce_evenly(model, amount)
    for name, size in sizes.items():
        less = min(amount * size / whole, size)
        if name == exchange and model.members:
            model = without_transfers(model, 1 - less / max(exposed, 1.0))
        else:
            model = shift_parts(model, range(len(model.lines)), [name], [less])
    return model


def less_late(
    job: Job, model: StepModel, rank: int, rows: Sequence[str], amount: float
) -> StepModel:
    """Take the time from a late rank, in the phases in which it is late.

    If the others wait for it in a phase of their own, they wait that much less there.
    """
    ranks = np.array(model.ranks)
    if rank not in ranks:
        return reduce_evenly(model, amount)
    excess, less = job.evidence.work.by_phase(rank), dict[str, float]()
    for row in rows:
        if row in excess and excess[row].value > 0:
            less[row] = excess[row].value
    if not less:
        return reduce_evenly(model, amount)
    mine, others = np.flatnonzero(ranks == rank), np.flatnonzero(ranks != rank)
    shares = amount / sum(less.values()) * np.array(list(less.values()))
    model = shift_parts(model, mine.tolist(), list(less), shares.tolist())
    waits_in = rows[-1]
    if waits_in == Phase.FORWARD.value and waits_in not in less:
        model = shift_parts(model, others.tolist(), [waits_in], [amount])
    return model
