"""Answers about the exchange between ranks: links, overlap, and bubbles of a pipeline."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow.compute as pc

from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.pipelines import MESSAGES
from profkit.analysis.whatif.changes import find_latency, overlap, scale_links
from profkit.analysis.whatif.step_model import StepModel
from profkit.explain.predict.job import Job, narrow, predict, unanswered
from profkit.explain.predict.prediction import Prediction, Question
from profkit.text import duration

MOST_FACTOR = 1_000.0
"""Links so much faster take no time."""


def _why_no_exchange(job: Job) -> str:
    """Return why nothing is known of the exchange, or nothing if it is."""
    if job.model is None:
        return job.why_no_model
    if not job.model.members:
        return "no exchange between ranks was recorded"
    if not job.evidence.costs.exchange_timed:
        return "the device's wait for the exchange was not timed"
    return ""


def ask_link(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model, why = job.model, _why_no_exchange(job)
    if why or model is None:
        return unanswered(job, question, why, "record a run of two or more ranks")
    latency, words = find_latency(model), "the messages' sizes"
    if latency is None:
        latency, words = measured_latency(job, model), "'profkit ceilings --links'"
    leaves = ["other jobs on the links", "what the processors of the hosts add to a message"]
    if not model.detailed:
        return ask_link_of_waits(job, model, question, leaves)
    if latency is not None:
        rests = (f"{duration(latency)} of each message are latency, by {words}",)
        models = [scale_links(model, question.value, latency)]
        return predict(job, question, models, rests_on=rests, leaves_out=leaves)
    whole = float(model.transfer.mean(axis=1).max())
    models = [scale_links(model, question.value, 0.0), scale_links(model, question.value, whole)]
    rests = ("the time of a message is all bandwidth at one end, all latency at the other",)
    found = predict(job, question, models, rests_on=rests, leaves_out=leaves)
    return narrow(found, "messages of one size do not show their latency",
                  "profkit ceilings --links")  # fmt: skip


def ask_link_of_waits(
    job: Job, model: StepModel, question: Question, leaves: list[str]
) -> Prediction:
    """Return the answer if only the exposed waits are known: what backward hides may be more."""
    if question.value < 1:
        why = "only the exposed part of the exchange is known, and slower links expose more of it"
        return unanswered(job, question, why, "record the job over gloo, or on the other links")
    faster, hidden = scale_links(model, question.value, 0.0), scale_links(model, MOST_FACTOR, 0.0)
    models = [faster, hidden, model]
    words = "the exposed waits become as much shorter"
    rests = (f"{words}; the ends of the interval are links that hide all of them, or none",)
    found = predict(job, question, models, rests_on=rests, leaves_out=leaves)
    why = "only the exposed part of the exchange is known"
    return narrow(found, why, "profkit ceilings --links")


def measured_latency(job: Job, model: StepModel) -> float | None:
    """Return what the smallest message takes between as many processes of this machine."""
    ceilings = load_ceilings(job.evidence.trace.manifest.environment)
    backends = set(pc.unique(job.evidence.trace.collectives["backend"]).to_pylist())
    for backend in backends:
        if ceilings is None:
            break
        links = ceilings.links_of(str(backend), len(model.lines))
        if links is not None and links.sizes:
            ranks = len(model.lines)
            moved = links.sizes[0] * 2 * (ranks - 1) / ranks
            return 1e9 * moved / links.bus_bytes_per_s[0]
    return None


def ask_overlap(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model, why = job.model, _why_no_exchange(job)
    if why or model is None:
        return unanswered(job, question, why)
    count = int(model.gradients.sum())
    if not count:
        why = "no exchange of gradients was recorded, and backward can hide nothing else"
        return unanswered(job, question, why, "ask what faster links give: --link 2x")
    what = "transfers of gradients" if model.detailed else "transfers"
    rests = [f"{what} run under backward, as far as it is long enough"]
    if count == 1:
        rests.append("the only message is sent in parts, of which the last is small")
    leaves = ["what the exchange costs the computing next to it"]
    if count < len(model.members):
        leaves.append(f"{len(model.members) - count:,} collectives per step without gradients")
    found = predict(job, question, [overlap(model)], rests_on=rests, leaves_out=leaves)
    if model.detailed:
        return found
    why = "this is the best case: what backward hides already was not recorded"
    return dataclasses.replace(found, why=found.why or why)


def ask_no_bubble(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model, ops = job.model, set(pc.unique(job.evidence.trace.collectives["op"]).to_pylist())
    if not ops & set(MESSAGES):
        return unanswered(job, question, "the run shows no messages between stages of a pipeline")
    if model is None or len(model.lines) < 2:
        return unanswered(job, question, job.why_no_model or "one rank was recorded")
    longest = model.own_work().max(axis=0)
    lines = []
    for line in model.lines:
        # One gap of work and no events: the rank works as long as the longest.
        work = np.zeros((1, line.work.shape[1], len(longest)))
        work[0, -1] = longest
        lines.append(dataclasses.replace(line, work=work, events=(), loader=None))
    full = dataclasses.replace(model, lines=tuple(lines), members=(), transfer=model.transfer[:0])
    rests = ("each stage works without a pause; the longest one sets the pace",)
    return predict(job, question, [full], rests_on=rests,
                   leaves_out=("transfers that nothing can hide",))  # fmt: skip
