"""Predictions of a changed job as a document and as JSON."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from profkit.explain.predict.prediction import WITHOUT, Prediction, Question, RankPoint
from profkit.explain.titles import full_title
from profkit.frame.estimate import Estimate
from profkit.show.document import (
    NAMED,
    Column,
    Document,
    Section,
    Table,
    Tone,
    data_columns,
    labelled,
)
from profkit.show.figures import (
    COUNT,
    NS,
    RATE,
    SHARE,
    TIMES,
    interval_in_brackets,
    interval_range,
    plain,
)
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
        headline=headline(answers),
        sections=(*sections, Section(table=Table(PREDICTIONS, answers), key="predictions")),
        copied=(("trace", str(first.path)),),
        data={
            "run": first.path,
            "step_ns": first.now_ns,
            "throughput_samples_per_s": pace,
            "replay_error_share": first.replay_error,
        },
    )


def headline(answers: Sequence[Prediction]) -> str:
    """Return the answer that raises the throughput most."""
    known = [answer for answer in answers if answer.speed_up is not None]
    if not known:
        return ""
    best = max(known, key=lambda answer: answer.speed_up.value if answer.speed_up else 0.0)
    doubt = " (inconclusive)" * (not best.conclusive)
    words = best.question.words
    return f"{words[:1].upper()}{words[1:]}: {gain_words(best)}{doubt}."


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
    if pace is None:
        return words
    return f"{words}, {plain(pace.value)} samples/s"


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
    words, cause = answer.question.words, answer.question.cause
    if answer.question.kind == WITHOUT:
        words = f"without {full_title(cause)}"
    return Section(words[:1].upper() + words[1:], table=labelled(rows))


def rank_section(answer: Prediction) -> Section:
    notes: tuple[str, ...] = ()
    if answer.knee:
        notes = (f"{answer.knee[:1].upper()}{answer.knee[1:]}.",)
    return Section("By number of ranks", notes, table=Table(_POINTS, answer.points))


def bar(point: RankPoint) -> str:
    """Return a bar as long as the throughput per rank, and its share of the recorded one."""
    length = max(0, min(round(point.efficiency * BAR), 2 * BAR))
    return f"{'█' * length} {percent(point.efficiency, 0)}"


WORTH_SAYING, MOST_IN_BRIEF = 1.02, 2
"""The text in brief has so many answers, which raise the throughput at least so many times."""

HELP = "What would help"
NOT_REPLAYED = Section(
    HELP, ("The run is too large to replay its steps here; 'profkit whatif RUN' does it.",)
)
"""The same of a run whose replay takes longer than its report."""


def answers_section(answers: Sequence[Prediction]) -> Section:
    """Return a row for each answer, for a document that is about more than them."""
    known = tuple(filter(operator.attrgetter("speed_up"), answers))
    note = "'profkit whatif RUN' says what these answers rest on."
    if not all(answer.conclusive for answer in known):
        note += " '?' means inconclusive."
    title = HELP * bool(known)
    question, _, throughput, doubt = ANSWERS
    step = Column("", "per step", lambda answer: answer.step_ns, NS, interval=True)
    table = Table((question, step, throughput, doubt), known)
    worth = [each for each in known if each.speed_up and each.speed_up.value >= WORTH_SAYING]
    brief = NAMED
    if worth:
        brief = Section(title, table=replace(table, shown=worth[:MOST_IN_BRIEF]))
    return Section(title, (note,), table=table, brief=brief)


ANSWERS = (
    Column("", "if the job were", lambda answer: answer.question.words, stretches=True),
    Column("", "per step", lambda answer: answer.step_on_same_machine, NS, interval=True),
    Column("", "throughput", lambda answer: answer.speed_up, TIMES),
    Column("", "?", lambda answer: "" if answer.conclusive else "?", role=lambda _: "unsure"),
)
"""What a run says of a changed job, for people; doubt is marked."""

_POINTS = (
    Column("ranks", "ranks", lambda point: point.ranks, COUNT),
    Column("step_ns", "step", lambda point: point.step_ns, NS, interval=True),
    Column("waiting_for_slowest_ns", "waiting for the slowest", lambda point: point.tail_ns, NS),
    Column("links_ns", "links", lambda point: point.links_ns, NS),
    Column("efficiency_share", None, lambda point: point.efficiency, SHARE),
    Column("", "efficiency", bar),
)

PREDICTIONS = (
    Column("question", None, lambda answer: _question(answer.question)),
    *data_columns("conclusive", "step_ns", "saved_ns", "rests_on", "leaves_out", "knee"),
    *data_columns(speed_up_ratio="speed_up", why_inconclusive="why", measure_next="next"),
    *data_columns(replay_error_share="replay_error"),
    Column("throughput_samples_per_s", None, lambda answer: answer.throughput(), RATE),
    Column("by_ranks", None, lambda answer: Table(_POINTS, answer.points)),
)
"""The same for programs."""


def _question(question: Question) -> dict[str, Any]:
    return {
        "kind": question.kind,
        "value": None if question.kind == WITHOUT else question.value,
        "cause": question.cause or None,
        "words": question.words,
    }
