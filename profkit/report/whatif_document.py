"""Predictions of a changed job as a document and as JSON."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from profkit.analysis.estimate import Estimate
from profkit.explain.predict.prediction import WITHOUT, Prediction, RankPoint
from profkit.report.document import Document, Grid, Section, Tone, labelled
from profkit.report.ledger_json import estimate
from profkit.report.words import interval_in_brackets, interval_range, plain
from profkit.text import duration, percent, plural, significant

BAR = 20
"""Width of the bar that stands for the recorded throughput per rank."""


def whatif(answers: Sequence[Prediction]) -> Document:
    """Return the document of all answers about one run."""
    first = answers[0]
    now = f"{duration(first.now_ns.value)} per step{interval_in_brackets(first.now_ns, duration)}"
    pace = first.throughput(now=True)
    if pace is not None:
        now += f", {plain(pace.value)} samples/s"
    sure = sum(answer.conclusive for answer in answers)
    verdict, tone = f"{sure} of {plural(len(answers), 'answer')} conclusive", Tone.PLAIN
    if len(answers) == 1:
        verdict = "predicted" if sure else "inconclusive"
    if not sure:
        tone = Tone.UNSURE
    sections = []
    for answer in answers:
        sections.append(answer_section(answer))
        if answer.points:
            sections.append(rank_section(answer))
    return Document(
        title=f"What if: {first.run}",
        subtitle=f"The job of {first.run}, if it were changed",
        verdict=verdict,
        tone=tone,
        summary=f"the recorded run takes {now}",
        figures=(),
        warnings=(),
        sections=tuple(sections),
        copied=(("trace", str(first.path)),),
    )


def gain_words(answer: Prediction) -> str:
    """Return what a change saves of the recorded steps, and the factor of the throughput."""
    saved, gain, words = answer.saved_ns, answer.speed_up, []
    if saved is not None:
        sign, what = (1, "less") if saved.value >= 0 else (-1, "more")
        ends = [sign * end for end in (saved.low, saved.high) if end is not None]
        size = Estimate(abs(saved.value), min(ends, default=None), max(ends, default=None))
        words.append(
            f"{duration(size.value)} per step {what}{interval_in_brackets(size, duration)}"
        )
    if gain is not None:
        times = f"{significant(gain.value)} times the throughput"
        if gain.low is not None and gain.high is not None:
            times += f" ({interval_range(gain, significant)})"
        words.append(times)
    return ", ".join(words)


def step_words(answer: Prediction) -> str:
    """Return the step and the throughput of a run with the change."""
    step, pace = answer.step_ns, answer.throughput()
    if step is None:
        return ""
    words = f"{duration(step.value)} per step{interval_in_brackets(step, duration)}"
    return f"{words}, {plain(pace.value)} samples/s" if pace is not None else words


def main_rows(answer: Prediction) -> tuple[tuple[str, str], ...]:
    """Return the best guess with its range, what changes, and why it is inconclusive."""
    return (
        ("best guess", step_words(answer)),
        ("change", gain_words(answer)),
        ("inconclusive", answer.why),
        ("measure next", answer.next),
    )


def answer_section(answer: Prediction) -> Section:
    rows = [*filter(operator.itemgetter(1), main_rows(answer))]
    for label, texts in (("rests on", answer.rests_on), ("leaves out", answer.leaves_out)):
        rows += zip([label, *[""] * len(texts)], texts, strict=False)
    words = answer.question.words
    return Section(words[:1].upper() + words[1:], grid=labelled(rows))


def rank_section(answer: Prediction) -> Section:
    rows = []
    for point in answer.points:
        links = "not known" if point.links_ns is None else duration(point.links_ns)
        rows.append(
            (
                f"{point.ranks:,}",
                duration(point.step_ns.value),
                interval_range(point.step_ns, duration),
                duration(point.tail_ns),
                links,
                bar(point),
            )
        )
    header = ("ranks", "step", "interval", "waiting for the slowest", "links", "efficiency")
    notes: tuple[str, ...] = ()
    if answer.knee:
        notes = (f"{answer.knee[:1].upper()}{answer.knee[1:]}.",)
    grid = Grid(header, tuple(rows), frozenset({0, 1, 2, 3, 4}))
    return Section("By number of ranks", notes, grid=grid)


def bar(point: RankPoint) -> str:
    """Return a bar as long as the throughput per rank, and its share of the recorded one."""
    length = max(0, min(round(point.efficiency * BAR), 2 * BAR))
    return f"{'█' * length} {percent(point.efficiency, 0)}"


def answers_section(answers: Sequence[Prediction]) -> Section:
    """Return a row for each answer, for a page that is about more than them."""
    rows = []
    for answer in answers:
        step, gain = answer.step_ns, ""
        if answer.speed_up is not None:
            gain = f"{significant(answer.speed_up.value)} times"
        taken = ""
        if step is not None:
            taken = f"{duration(step.value)}{interval_in_brackets(step, duration)}"
        outcome = "conclusive"
        if not answer.conclusive:
            outcome = f"inconclusive: {answer.why}"
        rows.append((answer.question.words, taken, gain, outcome))
    header = ("if the job were", "per step", "throughput", "")
    return Section("What if", grid=Grid(header, tuple(rows), frozenset({2})))


def whatif_json(answers: Sequence[Prediction]) -> dict[str, Any]:
    first = answers[0]
    return {
        "run": str(first.path),
        "step_ns": estimate(first.now_ns),
        "throughput_samples_per_s": _known(first.throughput(now=True)),
        "replay_error_share": first.replay_error,
        "predictions": list(map(prediction_json, answers)),
    }


def prediction_json(answer: Prediction) -> dict[str, Any]:
    question = answer.question
    points = []
    for point in answer.points:
        points.append(
            {
                "ranks": point.ranks,
                "step_ns": estimate(point.step_ns),
                "efficiency_share": point.efficiency,
                "waiting_for_slowest_ns": point.tail_ns,
                "links_ns": point.links_ns,
            }
        )
    return {
        "question": {
            "kind": question.kind,
            "value": None if question.kind == WITHOUT else question.value,
            "cause": question.cause or None,
            "words": question.words,
        },
        "conclusive": answer.conclusive,
        "step_ns": _known(answer.step_ns),
        "throughput_samples_per_s": _known(answer.throughput()),
        "saved_ns": _known(answer.saved_ns),
        "speed_up_ratio": _known(answer.speed_up),
        "why_inconclusive": answer.why or None,
        "measure_next": answer.next or None,
        "rests_on": list(answer.rests_on),
        "leaves_out": list(answer.leaves_out),
        "replay_error_share": answer.replay_error,
        "by_ranks": points,
        "knee": answer.knee or None,
    }


def _known(found: Estimate | None) -> dict[str, float | None] | None:
    return None if found is None else estimate(found)
