"""Answers to questions about one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from profkit.analysis.whatif.changes import with_loaders
from profkit.analysis.whatif.loader_model import MAKING
from profkit.analysis.whatif.step_model import ranks_by_host
from profkit.explain.explained import explain_sides
from profkit.explain.predict.alone import ALONE
from profkit.explain.predict.batches import ask_batch_size
from profkit.explain.predict.faster import ask_faster
from profkit.explain.predict.job import NO_MACHINE, Job, narrow, predict, unanswered
from profkit.explain.predict.links import ask_link, ask_no_bubble, ask_overlap
from profkit.explain.predict.prediction import (
    AMP,
    BATCH,
    DALI,
    FASTER,
    LINK,
    NO_BUBBLE,
    OVERLAP,
    RANKS,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.explain.predict.removal import remove_explained, step_factor
from profkit.explain.predict.shown import MIN_SHOWN_SHARE, NotShownError
from profkit.explain.predict.some_ranks import ask_ranks
from profkit.explain.slowness import UNKNOWN_SHARE, is_on_host
from profkit.text import duration, percent, plural
from profkit.vocab import Phase

COMPUTES = (Phase.FORWARD.value, Phase.BACKWARD.value)


def ask(job: Job, question: Question, base: Job | None = None) -> Prediction:
    """Return the answer; `base` is another run that it may rest on as well."""
    found = _find_answer(job, question, base)
    if not found.is_possible:
        what_next = "record the job with this change"
        return unanswered(job, question, "the data leads to a step that no job has", what_next)
    for step in (found.step_ns, found.step_on_same_machine):
        if step is not None and step.low == 0.0:
            why, what_next = "its interval reaches down to no time at all", found.next
            if job.noise[0] == UNKNOWN_SHARE:
                why, what_next = NO_MACHINE, "record the job: profkit run -- COMMAND"
            found = dataclasses.replace(found, why=found.why or why, next=found.next or what_next)
    return found


def _find_answer(job: Job, question: Question, base: Job | None) -> Prediction:
    missing = job.evidence.trace.missing_ranks
    if question.kind == NO_BUBBLE and missing:
        why = f"{plural(len(missing), 'rank')} left no files, and may have the longest stage"
        return unanswered(job, question, why, "record all ranks")
    if question.kind == WITHOUT:
        return ask_without(job, question, base)
    return _ANSWERS[question.kind](job, question, base)


def ask_without(job: Job, question: Question, base: Job | None) -> Prediction:
    """Remove a cause that the run shows alone, or that it has compared with another."""
    kind = question.cause
    if base is not None:
        return _without_compared(job, question, base)
    if kind not in ALONE:
        return unanswered(
            job,
            question,
            "one run does not show what it would take without this cause",
            f"compare it with a run without it: profkit whatif RUN --base OTHER --without {kind}",
        )
    if job.model is None:
        return unanswered(job, question, job.why_no_model)
    try:
        removal = ALONE[kind](job, job.model)
    except NotShownError as error:
        return unanswered(job, question, f"the run does not show this cause alone: {error}")
    answer = predict(
        job, question, removal.models, rests_on=removal.rests_on, leaves_out=removal.leaves_out
    )
    return dataclasses.replace(
        answer, why=answer.why or removal.why, next=answer.next or removal.next
    )


def _without_compared(job: Job, question: Question, base: Job) -> Prediction:
    """Remove a cause that the comparison with another run has."""
    kind, cause = question.cause, None
    found = explain_sides([base.evidence], [job.evidence])
    for each in found.causes:
        if each.kind == kind and not each.is_gain:
            cause = each
    if cause is None or cause.cost_ns is None or job.model is None:
        why = f"explain finds no cost of {kind} here, compared with {base.evidence.trace.name}"
        return unanswered(job, question, job.why_no_model or why)
    if cause.is_outside:
        why = f"the steps that {kind} makes longer are excluded, so that no figure includes it"
        return unanswered(job, question, why, "see its cost per step in 'profkit explain'")
    removal = remove_explained(job, job.model, cause, cause.cost_ns, step_factor(found.ledger, job))
    return predict(
        job, question, removal.models, rests_on=removal.rests_on, leaves_out=removal.leaves_out
    )


def ask_workers(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model, wanted = job.model, int(question.value)
    if model is None or not model.loaders:
        why = job.why_no_model or "the making of batches was not recorded on all ranks"
        return unanswered(job, question, why, "record the job with its data loader")
    known = model.loaders
    loaders = [dataclasses.replace(each, workers=wanted) for each in known]
    stated = job.evidence.trace.manifest.environment.get("cpu_count")
    cores = 0.0
    if isinstance(stated, int):
        cores = float(stated)
    making = duration(float(np.mean([each.making.mean() for each in known])))
    rests = [f"a batch takes {making} to make, and {plural(wanted, 'worker')} per rank take turns"]
    leaves = ["the start of the workers"]
    models, next_, why = [with_loaders(model, loaders)], "", ""
    hosts = ranks_by_host(job.evidence.trace)
    if wanted and not known[0].workers:
        leaves.append("handing batches over from the workers, which this run does not do")
    needed = max(map(len, hosts.values())) * (wanted + 1)
    if wanted and needed > cores:
        # Everyone gets a share of the cores at worst, and what is idle meanwhile at best.
        factor = needed / max(1.0, cores)
        slowed = [dataclasses.replace(each, pieces=each.pieces * factor) for each in loaders]
        models.append(with_loaders(model, slowed))
        processes = f"{needed} processes"
        if len(hosts) > 1:
            processes += " of a host"
        rests.append(f"{processes} share {int(cores)} cores at the upper end")
        why = f"{processes} would compete for {int(cores)} cores"
        next_ = f"record some steps with {plural(wanted, 'worker')}"
    found = predict(job, question, models, rests_on=rests, leaves_out=leaves)
    if not why:
        return found
    return narrow(found, why, next_)


def ask_dali(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model = job.model
    if model is None:
        return unanswered(job, question, job.why_no_model)
    if is_on_host(job.evidence):
        why = "DALI decodes on a GPU, and this run trains on processors"
        return unanswered(job, question, why, "record the job on a GPU")
    share = float(model.part(Phase.DATA.value).mean() / model.wall.mean())
    if share < MIN_SHOWN_SHARE:
        rests = (f"the loop waits {percent(share)} of the step for batches",)
        return predict(job, question, [model], rests_on=rests,
                       leaves_out=("what decoding costs the GPU",))  # fmt: skip
    known = model.loaders
    next_ = "record some steps with DALI: profkit run -- COMMAND"
    if not known:
        return unanswered(job, question, "the pieces of a batch were not recorded", next_)
    decode = MAKING.index("decode")
    loaders = []
    for each in known:
        pieces = each.pieces.copy()
        pieces[decode] = 0.0
        loaders.append(dataclasses.replace(each, pieces=pieces))
    rests = ("decoding takes no time; reading and collating stay",)
    found = predict(job, question, [with_loaders(model, loaders)], rests_on=rests)
    why = "this is the best case: how long the GPU takes to decode was not measured"
    return dataclasses.replace(found, why=why, next=next_)


def ask_amp(job: Job, question: Question, base: Job | None) -> Prediction:
    del base
    model = job.model
    precision = str(job.evidence.trace.manifest.config.get("precision", "")).lower()
    if "amp" in precision or "16" in precision:
        return unanswered(job, question, f"the run uses mixed precision already ({precision})")
    next_ = "record some steps with autocast, and compare: profkit explain RUN NEW"
    if model is None:
        return unanswered(job, question, job.why_no_model, next_)
    for name in COMPUTES:
        model = model.with_part(name, np.zeros_like(model.wall))
    found = predict(job, question, [model], rests_on=("forward and backward take no time",))
    why = "this is beyond the best case: times do not show how much faster the device computes"
    return dataclasses.replace(found, why=why, next=next_)


_ANSWERS: Mapping[str, Callable[[Job, Question, Job | None], Prediction]] = {
    FASTER: ask_faster,
    LINK: ask_link,
    OVERLAP: ask_overlap,
    NO_BUBBLE: ask_no_bubble,
    WORKERS: ask_workers,
    DALI: ask_dali,
    AMP: ask_amp,
    BATCH: ask_batch_size,
    RANKS: ask_ranks,
}
