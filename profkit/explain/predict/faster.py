"""A faster phase: measured by an experiment in the run, and compared with a replay."""

from __future__ import annotations

import dataclasses

import numpy as np

from profkit.analysis.columns import names_and_codes
from profkit.analysis.estimate import Estimate
from profkit.analysis.experiments import FEWEST_BLOCKS, Experiment, cost_share
from profkit.analysis.whatif.changes import with_loaders, without_transfers
from profkit.analysis.whatif.step_model import StepModel
from profkit.explain.predict.job import Job, narrow, predict, unanswered, widen_step
from profkit.explain.predict.prediction import Prediction, Question
from profkit.explain.predict.shown import MIN_SHOWN_SHARE
from profkit.text import duration, percent, plural
from profkit.vocab import EXPERIMENT_FACTOR, EXPERIMENT_SETTLES, LOADER_THREAD, Phase

EXCHANGE, DATA = Phase.ALLREDUCE.value, Phase.DATA.value
BACKWARD = Phase.BACKWARD.value

_OTHER_KINDS = "one that starts an epoch, compiles, evaluates, or was too long for its pauses"

MOST_DRIFT_SHARE = 0.1
"""If blocks still change by more than this share, they are too short for what they began with."""


def ask_faster(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step with one phase that is some times as fast."""
    del base
    phase, factor = question.cause, question.value
    simulated = simulate(job, question)
    if job.model is not None and simulated.step_ns is None:
        return simulated
    found = job.evidence.experiments.get(phase)
    record = f"profkit run --experiment {phase} -- COMMAND"
    if found is None:
        why = "the run has no experiment about this phase; this is simulated, without contention"
        return dataclasses.replace(simulated, why=why, next=record)
    if not len(found.slowed):
        why = f"all {plural(found.dropped, 'block')} hold a step of another kind: {_OTHER_KINDS}"
        return dataclasses.replace(simulated, why=why, next=f"record more steps: {record}")
    if factor != EXPERIMENT_FACTOR:
        why = f"the experiment measured this phase {EXPERIMENT_FACTOR} times as fast, no other pace"
        ask = f"profkit whatif RUN --faster {phase}={EXPERIMENT_FACTOR}x"
        return dataclasses.replace(simulated, why=why, next=ask)
    return from_blocks(job, question, found, simulated, record)


def from_blocks(
    job: Job, question: Question, found: Experiment, simulated: Prediction, record: str
) -> Prediction:
    """Return the answer of the blocks of an experiment."""
    now, blocks = job.now_ns.value, len(found.slowed)
    step = _step_of(found, now)
    measured = (
        f"{plural(blocks, 'block')} in which all but {found.phase} took {EXPERIMENT_FACTOR} times "
        f"as long: {plural(found.used, 'step')}, without the first {EXPERIMENT_SETTLES} of each"
    )
    rests = [
        measured,
        f"the blocks cost {percent(cost_share(job.evidence.trace, job.evidence.used))} of the run",
        _compared(step, simulated),
        job.noise[1],
    ]
    if found.dropped:
        more = plural(found.dropped, "more block")
        rests.insert(1, f"{more} are not used: each holds a step of another kind: {_OTHER_KINDS}")
    if found.beside_ns > MIN_SHOWN_SHARE * now:
        rests.append(f"{duration(found.beside_ns)} per step that is not slowed, as evaluation")
    answer = dataclasses.replace(
        job.answer(question), step_ns=step, rests_on=tuple(rests), replay_error=None
    )
    if step.low is None or step.high is None:
        why = f"{plural(blocks, 'block')} are too few for an interval, which takes {FEWEST_BLOCKS}"
        return dataclasses.replace(answer, why=why, next=f"record more steps: {record}")
    noise, _ = job.noise
    saved = Estimate(now - step.value, now - step.high, now - step.low)
    answer = dataclasses.replace(answer, saved_ns=saved, step_ns=widen_step(step, noise, 0.0))
    if LOADER_THREAD in names_and_codes(job.evidence.trace.spans["thread"])[0]:
        why = "a thread of the training process makes the batches; both wait for its interpreter"
        return dataclasses.replace(answer, why=why, next="record with loader workers")
    if found.phase == BACKWARD and (open_ends := why_backward_is_open(job)) is not None:
        why, what_next = open_ends
        return dataclasses.replace(answer, why=why, next=what_next)
    drift = float(np.median(found.drift))
    if abs(drift) > MOST_DRIFT_SHARE:
        why = f"the steps of a block still change by {percent(drift)} within it, as a queue does"
        return dataclasses.replace(answer, why=why, next="record with less prefetch")
    if job.why_too_busy:
        what_next = "repeat the run on a quiet machine"
        return dataclasses.replace(answer, why=job.why_too_busy, next=what_next)
    return narrow(answer, f"{plural(blocks, 'block')} scatter too much", f"record more: {record}")


def why_backward_is_open(job: Job) -> tuple[str, str] | None:
    """Return why a faster backward may uncover an exchange, and what to do next."""
    model, trace = job.model, job.evidence.trace
    if len(trace.ranks) + len(trace.missing_ranks) == 1:
        return None
    unknown = "it is not known what exchange backward hides"
    if trace.missing_ranks:
        return f"{unknown}: some ranks left no files", "record all ranks"
    if model is None or not model.detailed:
        why = job.why_no_model or "single collectives cannot be replayed"
        return f"{unknown}: {why}", "make backward faster, and compare: profkit explain RUN NEW"
    exposed = model.wall.mean() - model.own_work().mean()
    hidden = model.transfer.sum(axis=0).mean() - exposed
    if not hidden >= MIN_SHOWN_SHARE * model.wall.mean():
        return None
    why = "backward hides an exchange, which was not slowed: a faster one would uncover it"
    return why, "profkit whatif RUN --link 2x"


def _step_of(found: Experiment, now: float) -> Estimate:
    """Return the step with the faster phase; what was never slowed takes as long as it did."""
    share, rest = found.share, found.beside_ns
    step = Estimate(share.value * (now - rest) + rest)
    if share.low is None or share.high is None:
        return step
    ends = (share.low * (now - rest) + rest, share.high * (now - rest) + rest)
    return Estimate(step.value, *ends)


def _compared(step: Estimate, simulated: Prediction) -> str:
    """Return how the measured answer compares with the simulated one."""
    if simulated.step_ns is None:
        return f"it cannot be compared with a simulated answer: {simulated.why}"
    other = simulated.step_ns.value
    return (
        f"a replay without contention gives {duration(other)} per step, "
        f"{percent(abs(step.value / other - 1))} from it"
    )


def simulate(job: Job, question: Question) -> Prediction:
    """Return the simulated step with one phase that is some times as fast."""
    if job.model is None:
        return unanswered(job, question, job.why_no_model)
    phase, kept = question.cause, 1 / question.value
    if phase == EXCHANGE and not job.model.members:
        return unanswered(job, question, "no exchange between ranks was recorded")
    if phase != EXCHANGE and not job.model.part(phase).any():
        return unanswered(job, question, f"no time in {phase} was recorded")
    rests = (f"a replay in which {phase} takes {percent(kept, 0)} of its time",)
    return predict(job, question, [_faster(job.model, phase, kept)], rests_on=rests)


def _faster(model: StepModel, phase: str, kept: float) -> StepModel:
    if phase == EXCHANGE:
        return without_transfers(model, kept)
    if phase != DATA or not model.loaders or not model.loaders[0].workers:
        return model.with_part(phase, kept * model.part(phase))
    loaders = []
    for each in model.loaders:
        loaders.append(dataclasses.replace(each, pieces=kept * each.pieces))
    return with_loaders(model, loaders)
