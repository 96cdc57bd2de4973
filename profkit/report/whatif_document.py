"""Predictions of a changed job, and the record of earlier ones, as documents and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from profkit.analysis.estimate import Estimate
from profkit.explain.predict.prediction import WITH_VALUE, Prediction, Question, RankPoint
from profkit.explain.predict.record import Calibration, Entry, calibrate
from profkit.report.document import Document, Grid, Section, Tone, labelled
from profkit.report.ledger_json import estimate
from profkit.report.words import interval_in_brackets, interval_range, plain
from profkit.text import duration, percent, plural, signed, significant

BAR = 20
"""Width of the bar that stands for the recorded throughput per rank."""

MOST_MISSES = 10
"""Misses that a screen names; all of them are in the JSON."""


def whatif(answers: Sequence[Prediction], path: Path, entries: Sequence[Entry] | None) -> Document:
    """Return the document of all answers about one run; without entries no record was read."""
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
        sections.append(answer_section(answer, entries))
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
        copied=(("trace", str(path)),),
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


def answer_section(answer: Prediction, entries: Sequence[Entry] | None) -> Section:
    shown = "" if answer.conclusive else "inconclusive"
    rows = [("answer", "; ".join(filter(None, (shown, gain_words(answer)))))]
    if answer.step_ns is not None:
        rows.append(("a new run", step_words(answer)))
    if answer.why:
        rows.append(("because", answer.why))
    if answer.next:
        rows.append(("measure next", answer.next))
    for label, texts in (("rests on", answer.rests_on), ("leaves out", answer.leaves_out)):
        rows += zip([label, *[""] * len(texts)], texts, strict=False)
    known = record_words(answer.question, entries)
    if known and answer.step_ns is not None:
        rows.append(("record", known))
    words = answer.question.words
    return Section(words[:1].upper() + words[1:], grid=labelled(rows))


def record_words(question: Question, entries: Sequence[Entry] | None) -> str:
    """Return how earlier answers to a kind of question came out, for the same cause.

    It is empty if no record was read.
    """
    if entries is None:
        return ""
    such = []
    for entry in entries:
        if entry.kind == question.kind and entry.question.get("cause", "") == question.cause:
            such.append(entry)
    found = calibrate(such)[-1]
    unsure = found.scored - found.conclusive
    if found.median_error is None or found.inside is None:
        if unsure:
            words = "of such predictions, only inconclusive ones were compared with a later run"
            return f"{words} ({unsure:,})"
        return "no such prediction was compared with a later run yet"
    words = (
        f"of {plural(found.conclusive, 'such prediction')} the median error was "
        f"{percent(found.median_error)}, {percent(found.inside, 0)} fell inside"
    )
    return f"{words}; inconclusive ones are not counted ({unsure:,})" if unsure else words


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


def whatif_json(
    answers: Sequence[Prediction], path: Path, entries: Sequence[Entry] | None
) -> dict[str, Any]:
    first, found = answers[0], []
    for answer in answers:
        known = record_words(answer.question, entries) or None
        found.append({**prediction_json(answer), "record": known})
    return {
        "run": str(path),
        "step_ns": estimate(first.now_ns),
        "throughput_samples_per_s": _known(first.throughput(now=True)),
        "replay_error_share": first.replay_error,
        "predictions": found,
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
            "value": question.value if question.kind in WITH_VALUE else None,
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


# -- the record ------------------------------------------------------------------------------------


def record(entries: Sequence[Entry], path: Path) -> Document:
    """Return how all predictions of a file came out."""
    rows = list(map(calibration_row, calibrate(entries)))
    figures = ("median error", "inside", "half of the interval")
    header = ("kind", "made", "scored", "conclusive", *figures)
    grid = Grid(header, tuple(rows), frozenset(range(1, len(header))))
    misses, scored = list[Entry](), 0
    for entry in entries:
        scored += entry.measured_ns is not None
        if entry.inside is False:
            misses.append(entry)
    sections = [Section("By kind", grid=grid)]
    if misses:
        notes = tuple(map(miss_words, misses[-MOST_MISSES:]))
        sections.append(Section(f"Outside of their interval: {len(misses)}", notes))
    return Document(
        title="Record of predictions",
        subtitle="Predictions, and the runs in which the changes were made",
        verdict=f"{plural(len(entries), 'prediction')}, {scored:,} of them scored",
        tone=Tone.PLAIN,
        summary="a prediction is scored when a later run makes its change",
        figures=(),
        warnings=(),
        sections=tuple(sections),
        copied=(("record", str(path)),),
    )


def calibration_row(each: Calibration) -> tuple[str, ...]:
    row = [each.kind, f"{each.made:,}", f"{each.scored:,}", f"{each.conclusive:,}"]
    if each.median_error is None or each.inside is None or each.half_width is None:
        return (*row, "-", "-", "-")
    width = percent(each.half_width)
    return (*row, percent(each.median_error), percent(each.inside, 0), f"±{width}")


def miss_words(entry: Entry) -> str:
    measured, error = entry.measured_ns or 0.0, entry.error or 0.0
    sure = "" if entry.conclusive else ", which was called inconclusive"
    return (
        f"{entry.run}, {entry.words}: {duration(entry.step_ns)} predicted{sure}, "
        f"{duration(measured)} in {entry.scored_run} ({signed(error, percent)})"
    )


def score_lines(entries: Sequence[Entry], run: str) -> Iterator[str]:
    """Yield a line for each prediction that a run was compared with."""
    for entry in entries:
        if entry.scored_run == run and entry.measured_ns is not None:
            fell = "inside" if entry.inside else "outside of"
            yield (
                f"{entry.words} was predicted from {entry.run}: {duration(entry.step_ns)} per "
                f"step; this run takes {duration(entry.measured_ns)}, {fell} the interval"
            )


def record_json(entries: Sequence[Entry], path: Path) -> dict[str, Any]:
    rows = []
    for each in calibrate(entries):
        rows.append(
            {
                "kind": each.kind,
                "made": each.made,
                "scored": each.scored,
                "conclusive": each.conclusive,
                "median_error_share": each.median_error,
                "inside_share": each.inside,
                "half_interval_share": each.half_width,
            }
        )
    predictions = []
    for entry in entries:
        predictions.append(
            {
                "run": entry.run,
                "question": dict(entry.question),
                "step_ns": {
                    "value": entry.step_ns, "low": entry.low_ns, "high": entry.high_ns
                },
                "conclusive": entry.conclusive,
                "scored_by": entry.scored_run or None,
                "measured_step_ns": entry.measured_ns,
                "error_share": entry.error,
                "inside": entry.inside,
            }
        )  # fmt: skip
    return {"record": str(path), "calibration": rows, "predictions": predictions}
