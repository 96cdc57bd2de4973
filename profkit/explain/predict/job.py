"""A run that questions are asked about: its model, its replay, its noise."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from profkit.analysis.whatif.meetings import ReplayError
from profkit.analysis.whatif.step_model import StepModel, build_model
from profkit.analysis.whatif.step_replay import replay
from profkit.errors import UnreadableError
from profkit.explain.earlier import spread_of_earlier
from profkit.explain.evidence import Evidence
from profkit.explain.policy import POLICY
from profkit.explain.predict.prediction import Prediction, Question
from profkit.explain.slowness import (
    DEVICE_SHARE,
    UNKNOWN_SHARE,
    is_on_host,
    quiet_share,
    state_of,
)
from profkit.frame.device_times import PhaseClock, is_own
from profkit.frame.estimate import FEWEST_STEPS, USUAL_LEVEL, Estimate, Floats, estimate_ratios
from profkit.frame.notices import is_log
from profkit.text import percent, plural, safe_text
from profkit.trace import Trace

WORST_REPLAY = 0.15
"""If the replayed run differs from the measured one by more than this share, nothing is said."""

MIN_BUSY_SHARE = 0.05
"""Other processes that use less of a machine are always there."""

MOST_WAITED_SHARE = 0.25
"""If a rank's threads wait for a core longer, other processes decide on its step as well."""

MORE_STEPS = "record at least 8 steps after the warm-up"

NO_MACHINE = "nothing is known of the machine that the imported run trained on"

_BETWEEN = "for the noise between runs"

WIDE_SHARE = 0.25
"""An interval of more than this share of the step, recorded or changed, needs a measurement."""


@dataclass(eq=False)
class Job:
    """A run that questions are asked about: its figures, its model, and the replay as it was."""

    evidence: Evidence
    model: StepModel | None
    why_no_model: str = ""
    walls: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    with_earlier: bool = True
    """If true, earlier runs of the job are read to see how much they differ."""

    @functools.cached_property
    def noise(self) -> tuple[float, str]:
        """The share by which two runs of this job may differ, and where that is from."""
        evidence = self.evidence
        spread = None
        if self.with_earlier:
            spread = spread_of_earlier(evidence.trace, evidence.trace)
        if spread is not None:
            differences = plural(spread.runs, "difference")
            return spread.half, f"{differences} between earlier runs of this job"
        if not is_own(evidence.trace) and is_on_host(evidence):
            return UNKNOWN_SHARE, f"{percent(UNKNOWN_SHARE, 0)} {_BETWEEN}: {NO_MACHINE}"
        if evidence.costs.clock is not PhaseClock.HOST or not is_own(evidence.trace):
            return DEVICE_SHARE, f"{percent(DEVICE_SHARE, 0)} {_BETWEEN} of a device's work"
        share = quiet_share(evidence.trace.manifest)
        machine = "quiet" if share == POLICY.quiet_share else "virtual"
        return share, f"{percent(share, 0)} {_BETWEEN} on a {machine} machine"

    @property
    def busy_share(self) -> float:
        """The share of the machine's cores that other processes used; 0 if it was not read."""
        state = self.evidence.figure(state_of)
        if state is None:
            return 0.0
        return state.share_of_others

    @property
    def why_too_busy(self) -> str:
        """Why the step depends on other processes as well; empty if they left enough cores."""
        state = self.evidence.figure(state_of)
        if state is None or state.waited is None or state.share_of_others < MIN_BUSY_SHARE:
            return ""
        waited = state.waited / self.evidence.costs.ranks
        if self.evidence.costs.clock is not PhaseClock.HOST or waited < MOST_WAITED_SHARE:
            return ""
        return f"its threads waited for a core {percent(waited, 0)} of the time"

    @functools.cached_property
    def now_ns(self) -> Estimate:
        """The measured step, on average over the ranks."""
        costs = self.evidence.costs
        walls = costs.wall_ns[None, :].astype(np.float64)
        return estimate_ratios(walls, np.full_like(walls, costs.ranks))[0]

    @property
    def samples(self) -> float:
        """Samples of all ranks per step; a log's row may speak for several ranks."""
        costs, stated = self.evidence.costs, None
        if is_log(self.evidence.trace):
            stated = self.evidence.trace.manifest.config.get("rows_speak_for_ranks")
        rows = 1
        if isinstance(stated, int) and stated > 0:
            rows = stated
        return rows * float(costs.samples.sum()) / max(1, costs.steps)

    @property
    def replay_error(self) -> float | None:
        if self.model is None or not self.model.wall.mean() > 0:
            return None
        return float(self.walls.mean() / self.model.wall.mean() - 1)

    def answer(self, question: Question) -> Prediction:
        """Return an empty answer, to be filled in."""
        return Prediction(
            question,
            self.evidence.trace.path,
            self.now_ns,
            None,
            self.samples,
            self.samples,
            replay_error=self.replay_error,
        )


def read_job(trace: Trace) -> Job:
    """Return a run with its model; raise `UnreadableError` if none of its steps can be used."""
    evidence = Evidence(trace)
    if not evidence.costs.steps:
        raise UnreadableError(
            f"{safe_text(str(trace.path))}: no step can be used: all are warm-up, or differ from "
            "the others; record more steps"
        )
    return open_job(evidence)


def open_job(evidence: Evidence, *, with_earlier: bool = True) -> Job:
    """Return a run with its model; if it cannot be replayed, the job says why."""
    try:
        model = build_model(evidence.trace, evidence.basis)
        walls = replay(model)
    except ReplayError as reason:
        return Job(evidence, None, str(reason), with_earlier=with_earlier)
    job = Job(evidence, model, walls=walls, with_earlier=with_earlier)
    error = job.replay_error
    if error is not None and math.isfinite(error) and abs(error) <= WORST_REPLAY:
        return job
    shown = percent(error) if error is not None else "an unknown share"
    why = f"the replay of the unchanged run differs from the measured one by {shown}"
    return dataclasses.replace(job, model=None, why_no_model=why)


def predict(
    job: Job,
    question: Question,
    models: Sequence[StepModel],
    *,
    rests_on: Sequence[str] = (),
    leaves_out: Sequence[str] = (),
) -> Prediction:
    """Return the answer of changed models: the first is the value, all make the interval."""
    if job.model is None:
        return unanswered(job, question, job.why_no_model)
    before, unchanged = job.model.wall.mean(axis=0), job.walls.mean(axis=0)
    less = unchanged - np.stack(list(map(replay, models))).mean(axis=1)
    series = np.concatenate([before - less, less])
    estimates = estimate_ratios(series, np.ones_like(series))
    # The replay may be about fewer steps than the figures of the run are.
    steps = _enclose(estimates[: len(less)], job.now_ns.value - float(before.mean()))
    noise, words = job.noise
    why, what_next = job.why_too_busy, ""
    if why:
        what_next = "repeat the run on a quiet machine"
    if job.evidence.costs.of_lines:
        why = "a line of the log is the mean of several steps, which does not show how they scatter"
        what_next = "record the job, or log every step"
    if not steps.judged:
        why = f"{plural(len(before), 'step')} are too few for an interval"
        what_next = MORE_STEPS
    return dataclasses.replace(
        job.answer(question),
        step_ns=widen_step(steps, noise, job.replay_error or 0.0),
        saved_ns=_enclose(estimates[len(less) :], 0.0),
        why=why,
        next=what_next,
        rests_on=(*rests_on, *describe_replay(job), words),
        leaves_out=(*leaves_out, *_left_out(job, job.model)),
    )


def _left_out(job: Job, model: StepModel) -> Iterator[str]:
    """Yield what every answer about a run leaves out."""
    if model.left_out:
        yield f"{plural(model.left_out, 'step')} with other collectives than most"
    missing = len(job.evidence.trace.missing_ranks)
    if missing and not is_log(job.evidence.trace):
        yield f"{plural(missing, 'rank')} without files, for which others may wait"
    if job.busy_share >= MIN_BUSY_SHARE:
        share = percent(job.busy_share, 0)
        yield f"another load of the machine: other processes used {share} of its cores"


def _enclose(estimates: Sequence[Estimate], offset: float) -> Estimate:
    """Return the first estimate with an interval that holds those of all, moved by `offset`."""
    value, low, high = estimates[0].value, math.inf, -math.inf
    for each in estimates:
        if each.low is None or each.high is None:
            return Estimate(value + offset)
        low, high = min(low, each.low), max(high, each.high)
    return Estimate(value + offset, low + offset, high + offset)


def unanswered(job: Job, question: Question, why: str, what_next: str = "") -> Prediction:
    """Return an answer that says nothing but why, and what to measure."""
    if job.model is None and job.evidence.costs.steps < FEWEST_STEPS:
        what_next = MORE_STEPS
    return dataclasses.replace(job.answer(question), why=why, next=what_next)


def narrow(found: Prediction, why: str, what_next: str) -> Prediction:
    """Return an answer as inconclusive if its interval is wide for a reason."""
    step = found.step_on_same_machine
    if step is None or step.low is None or step.high is None:
        return found
    if step.high - step.low <= WIDE_SHARE * min(step.value, found.now_ns.value):
        return found
    return dataclasses.replace(found, why=found.why or why, next=found.next or what_next)


def describe_replay(job: Job) -> tuple[str, ...]:
    model = job.model
    if model is None or job.replay_error is None:
        return ()
    what = "phases of one rank"
    if model.members:
        met = plural(len(model.members), "exposed wait")
        if model.detailed:
            met = plural(len(model.members), "collective")
        what = f"phases of {plural(len(model.lines), 'rank')} and {met} per step"
    elif len(model.lines) > 1:
        what = f"phases of {plural(len(model.lines), 'rank')} that never wait for each other"
    shown = percent(job.replay_error)
    replayed = f"a replay of {plural(len(model.steps), 'step')}: {what}"
    return (f"{replayed}; unchanged, it differs from the measured steps by {shown}",)


def widen_step(step: Estimate, noise: float, error: float) -> Estimate:
    """Return a step's interval with the noise between runs and the error of the replay."""
    if step.low is None or step.high is None:
        return step
    further = step.value * math.hypot(noise, error)
    low = step.value - math.hypot(step.value - step.low, further)
    high = step.value + math.hypot(step.high - step.value, further)
    return Estimate(step.value, max(0.0, low), high, USUAL_LEVEL)
