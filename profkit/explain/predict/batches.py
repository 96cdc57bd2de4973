"""Another batch size: from two runs by a straight line, from one run by physical limits."""

from __future__ import annotations

import dataclasses
import math

from profkit.analysis.estimate import Estimate
from profkit.analysis.phases import UNKNOWN
from profkit.analysis.whatif.step_model import StepModel
from profkit.explain.predict.job import Job, narrow, predict, unanswered
from profkit.explain.predict.other_runs import why_other_job
from profkit.explain.predict.prediction import BATCH, Prediction, Question
from profkit.text import plural
from profkit.vocab import Phase

SAME_JOB = "compare two runs of the same job on the same machine, with this one change"

PER_SAMPLE = (Phase.DATA.value, Phase.H2D.value)
"""Parts that take as long for each sample, however many there are."""

BETWEEN = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OTHER.value, UNKNOWN)
"""Parts that take from no longer to as much longer as there are more samples."""


def ask_batch_size(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step with another number of samples per rank."""
    now, wanted = job.evidence.step_samples, question.value
    if not now:
        return unanswered(job, question, "the run does not record how many samples a step has")
    samples = job.samples * wanted / now
    if base is not None:
        found = ask_by_line(job, question, base)
        return dataclasses.replace(found, samples=samples)
    if job.model is None:
        return unanswered(job, question, job.why_no_model)
    factor = wanted / now
    most = _scale(job.model, (*PER_SAMPLE, *BETWEEN), factor)
    least = _scale(job.model, PER_SAMPLE, factor)
    words = "input and copies take as much longer as there are samples; computing and the rest too"
    rests = (f"{words} at one end of the interval, and no longer at the other",)
    found = predict(job, question, [most, least], rests_on=rests,
                    leaves_out=("memory: the batch may not fit",))  # fmt: skip
    wanted_words = f"--batch-size {int(wanted)}"
    what_next = (
        f"record some steps with another batch, then: profkit whatif RUN --base THAT {wanted_words}"
    )
    why = "one batch size does not show what of the computing depends on it"
    return dataclasses.replace(narrow(found, why, what_next), samples=samples)


def _scale(model: StepModel, parts: tuple[str, ...], factor: float) -> StepModel:
    """Return the model with parts that take longer; workers make batches that take longer."""
    scaled = model
    for name in parts:
        scaled = scaled.with_part(name, scaled.part(name) * factor)
    lines = []
    for line, before in zip(scaled.lines, model.lines, strict=True):
        loader = before.loader
        if loader is not None:
            loader = dataclasses.replace(loader, pieces=loader.pieces * factor)
        lines.append(dataclasses.replace(line, loader=loader))
    return dataclasses.replace(scaled, lines=tuple(lines))


def ask_by_line(job: Job, question: Question, base: Job) -> Prediction:
    """Return the step on the straight line through the steps of two runs."""
    first, second = base.evidence.step_samples, job.evidence.step_samples
    if not first or first == second:
        why = f"{base.evidence.trace.name} has the same batch size, or states none"
        return unanswered(job, question, why, "compare with a run of another batch size")
    why = why_other_job(BATCH, base.evidence.trace, job.evidence.trace)
    if why:
        return unanswered(job, question, why, SAME_JOB)
    weight = (question.value - first) / (second - first)
    why = why_no_line(job, base, weight)
    if why:
        what_next = "record a run nearer to that batch size"
        return unanswered(job, question, why, what_next)
    step, words = on_line(job, base, weight)
    runs = f"{plural(int(first), 'sample')} and {plural(int(second), 'sample')} per rank and step"
    rests = (f"a straight line through two runs, of {runs}", words)
    found = dataclasses.replace(
        job.answer(question), step_ns=step, rests_on=rests, replay_error=None,
        leaves_out=("memory, and kernels that suit another size better",),
    )  # fmt: skip
    if not step.judged:
        return dataclasses.replace(found, why="one of the runs has too few steps for an interval")
    return narrow(found, "so far from the two runs, their noise leaves too much open",
                  "record a run nearer to that batch size")  # fmt: skip


def why_no_line(job: Job, base: Job, weight: float) -> str:
    """Return why no straight line leads from two runs to this weight; empty if one does.

    A step has a part for each sample and a part for itself, and neither is below zero.
    """
    few, many = sorted((job, base), key=lambda each: each.evidence.step_samples)
    least, most = few.now_ns, many.now_ns
    if least.low is not None and most.high is not None and most.high < least.low:
        return "steps are shorter with more samples, so the two runs differ in more than that"
    if not on_line(job, base, weight)[0].value > 0:
        return "the line through the two runs comes down to no time at this size"
    first, second = base.evidence.step_samples, job.evidence.step_samples
    without_samples, _ = on_line(job, base, first / (first - second))
    if not 0 <= weight <= 1 and without_samples.high is not None and without_samples.high < 0:
        return "the step grows faster than the batch, so it is on no straight line beyond the two"
    return ""


def on_line(job: Job, base: Job, weight: float) -> tuple[Estimate, str]:
    """Return the base's step plus `weight` times the difference of the two runs."""
    value = base.now_ns.value + weight * (job.now_ns.value - base.now_ns.value)
    squares, words = 0.0, ""
    for each, part in ((job, weight), (base, 1 - weight)):
        noise, words = each.noise
        step = each.now_ns
        if step.low is None or step.high is None:
            return Estimate(value), words
        half = max(step.high - step.value, step.value - step.low)
        squares += part**2 * (half**2 + (noise * step.value) ** 2 / 2)
    # The predicted run has noise of its own.
    half = math.sqrt(squares + (noise * value) ** 2 / 2)
    low = value - half
    if value > 0:
        low = max(0.0, low)
    return Estimate(value, low, value + half), words
