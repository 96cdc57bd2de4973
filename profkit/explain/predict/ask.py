"""Answers to questions about one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow.compute as pc

from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.views.loader import build_loader_view
from profkit.analysis.whatif.changes import (
    find_latency,
    scale_links,
    with_loaders,
    without_transfers,
)
from profkit.analysis.whatif.step_model import StepModel, ranks_by_host
from profkit.errors import UsageError
from profkit.explain.explained import explain_sides
from profkit.explain.predict.alone import ALONE, NotShownError, shown_alone
from profkit.explain.predict.job import NO_MACHINE, Job, narrow, predict, unanswered
from profkit.explain.predict.prediction import (
    FASTER,
    LINK,
    RANKS,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.explain.predict.ranks import ask_ranks
from profkit.explain.predict.removal import remove_explained, step_factor
from profkit.explain.slowness import UNKNOWN_SHARE
from profkit.text import duration, percent, plural, safe_text
from profkit.vocab import Phase

EXCHANGE, DATA, BACKWARD = Phase.ALLREDUCE.value, Phase.DATA.value, Phase.BACKWARD.value

MOST_WORKERS = 16
"""No more workers per rank are proposed: something else has to make the batches faster."""

MOST_FACTOR = 1_000.0
"""Links so much faster take no time."""


def ask(job: Job, question: Question, base: Job | None = None) -> Prediction:
    """Return the answer; `base` is another run that it may rest on as well."""
    found = ANSWERS[question.kind](job, question, base)
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


def answer_all(job: Job) -> list[Prediction]:
    """Return the answers that a run can give by itself, the largest gain first.

    Raises `UsageError` if there are none.
    """
    shown = shown_alone(job)
    answers = [ask(job, Question(WITHOUT, cause=kind)) for kind in shown]
    enough = enough_workers(job)
    if "input_bound" in shown and enough:
        answers.append(ask(job, Question(WORKERS, enough)))
    if job.model is not None and job.model.members:
        answers.append(ask(job, Question(LINK, 2.0)))
    if not answers:
        why = job.why_no_model or "the run shows no cause by itself, and no exchange"
        path = safe_text(str(job.evidence.trace.path))
        raise UsageError(f"{path}: {why}; ask a question (see 'profkit whatif -h')")
    return sorted(answers, key=lambda each: each.step_ns.value if each.step_ns else 0.0)


def enough_workers(job: Job) -> int:
    """Return how many workers would hide the loader; 0 if it has them or nothing says so."""
    view = build_loader_view(job.evidence.trace)
    if view.model is None or view.unexplained_ns:
        return 0
    enough = view.model.enough or 0
    return enough if view.model.workers < enough <= MOST_WORKERS else 0


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
    if cause.apart:
        why = f"the steps that {kind} makes longer are excluded, so that no figure includes it"
        return unanswered(job, question, why, "see its cost per step in 'profkit explain'")
    factor = step_factor(found.ledger, job)
    models = remove_explained(job, job.model, cause, cause.cost_ns, factor)
    costs = duration(cause.cost_ns.value * factor)
    rests = (f"explain's cost of the cause, {costs} per step",)
    return predict(job, question, models, rests_on=rests)


def ask_workers(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step with another number of loader workers per rank."""
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
    return narrow(found, why, next_) if why else found


# -- faster phases and links -----------------------------------------------------------------------


def ask_faster(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step with one phase that is some times as fast."""
    del base
    model, phase, kept = job.model, question.cause, 1 / question.value
    if model is None:
        return unanswered(job, question, job.why_no_model)
    if phase == EXCHANGE and not model.members:
        return unanswered(job, question, "no exchange between ranks was recorded")
    if phase != EXCHANGE and not model.part(phase).any():
        return unanswered(job, question, f"no time in {phase} was recorded")
    rests = (f"a replay in which {phase} takes {percent(kept, 0)} of its time",)
    leaves = ("what phases take from each other: processor time, caches, links",)
    faster = _with_faster(model, phase, kept)
    found = predict(job, question, [faster], rests_on=rests, leaves_out=leaves)
    if phase == BACKWARD and question.value > 1 and (why := _why_hidden_is_unknown(job, model)):
        what_next = "make backward faster, and compare: profkit explain RUN NEW"
        return dataclasses.replace(found, why=found.why or why, next=found.next or what_next)
    return found


def _why_hidden_is_unknown(job: Job, model: StepModel) -> str:
    """Return why a faster backward may uncover an exchange that the replay does not know."""
    trace = job.evidence.trace
    if len(trace.ranks) + len(trace.missing_ranks) == 1:
        return ""
    unknown = "it is not known what exchange backward hides"
    if trace.missing_ranks:
        return f"{unknown}: some ranks left no files"
    return "" if model.detailed else f"{unknown}: single collectives cannot be replayed"


def _with_faster(model: StepModel, phase: str, kept: float) -> StepModel:
    if phase == EXCHANGE:
        return without_transfers(model, kept)
    if phase != DATA or not model.loaders or not model.loaders[0].workers:
        return model.with_part(phase, kept * model.part(phase))
    loaders = []
    for each in model.loaders:
        loaders.append(dataclasses.replace(each, pieces=kept * each.pieces))
    return with_loaders(model, loaders)


def ask_link(job: Job, question: Question, base: Job | None) -> Prediction:
    """Return the step with links of another bandwidth."""
    del base
    model = job.model
    if model is None or not model.members or not job.evidence.costs.exchange_timed:
        why = job.why_no_model
        if model is not None:
            why = "the device's wait for the exchange was not timed"
            if not model.members:
                why = "no exchange between ranks was recorded"
        return unanswered(job, question, why, "record a run of two or more ranks")
    latency, words = find_latency(model), "the messages' sizes"
    if latency is None:
        latency, words = measured_latency(job, model), "'profkit ceilings --links'"
    leaves = ("other jobs on the links", "what the processors of the hosts add to a message")
    what_next = "profkit ceilings --links"
    if not model.detailed:
        why = "only the exposed part of the exchange is known"
        if question.value < 1:
            why = f"{why}, and slower links expose more of it"
            return unanswered(job, question, why, "record the job over gloo, or on the other links")
        scaled = [scale_links(model, factor, 0.0) for factor in (question.value, MOST_FACTOR)]
        words = "the exposed waits become as much shorter"
        rests = (f"{words}; the ends of the interval are links that hide all of them, or none",)
        found = predict(job, question, [*scaled, model], rests_on=rests, leaves_out=leaves)
        return narrow(found, why, what_next)
    if latency is not None:
        rests = (f"{duration(latency)} of each message are latency, by {words}",)
        models = [scale_links(model, question.value, latency)]
        return predict(job, question, models, rests_on=rests, leaves_out=leaves)
    whole = float(model.transfer.mean(axis=1).max())
    models = [scale_links(model, question.value, fixed) for fixed in (0.0, whole)]
    rests = ("the time of a message is all bandwidth at one end, all latency at the other",)
    found = predict(job, question, models, rests_on=rests, leaves_out=leaves)
    return narrow(found, "messages of one size do not show their latency", what_next)


def measured_latency(job: Job, model: StepModel) -> float | None:
    """Return what the smallest message takes between as many processes of this machine."""
    ceilings = load_ceilings(job.evidence.trace.manifest.environment)
    if ceilings is None:
        return None
    ranks = len(model.lines)
    for backend in pc.unique(job.evidence.trace.collectives["backend"]).to_pylist():
        links = ceilings.links_of(str(backend), ranks)
        if links is not None and links.sizes:
            moved = links.sizes[0] * 2 * (ranks - 1) / ranks
            return 1e9 * moved / links.bus_bytes_per_s[0]
    return None


ANSWERS: Mapping[str, Callable[[Job, Question, Job | None], Prediction]] = {
    WITHOUT: ask_without,
    FASTER: ask_faster,
    LINK: ask_link,
    WORKERS: ask_workers,
    RANKS: ask_ranks,
}
