"""The answers about a run as columns, and one of them as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from profkit.explain.predict.prediction import Prediction
from profkit.report.whatif_document import main_rows
from profkit.report.words import interval_in_brackets, interval_range, plain
from profkit.text import duration, plural, significant
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import Column, Columns
from profkit.tui.widgets.draw import Piece, folded


def summary_lines(answers: Sequence[Prediction], palette: Palette) -> Iterator[list[Piece]]:
    """Yield what the recorded run takes, and how many answers are conclusive."""
    now, pace = answers[0].now_ns, answers[0].throughput(now=True)
    words = f"recorded: {duration(now.value)} per step{interval_in_brackets(now, duration)}"
    if pace is not None:
        words += f", {plain(pace.value)} samples/s"
    yield [(words, None)]
    sure = sum(answer.conclusive for answer in answers)
    words = f"{sure} of {plural(len(answers), 'answer')} conclusive, the others have a ?"
    yield [(words, palette.style("dim"))]


def answer_columns(answers: Sequence[Prediction]) -> list[Column]:
    """Return the columns of the answers."""
    table: Columns[Prediction] = Columns(answers)
    table.text("if the job were", lambda answer: answer.question.words, stretches=True)
    table.figure("per step", _step_ns, duration)
    table.text("interval", _interval, searched=False)
    table.figure("throughput", _factor, lambda factor: f"x {significant(factor)}")
    table.text("?", _doubt, role=lambda _: "unsure")
    return table.columns


def _step_ns(answer: Prediction) -> float | None:
    step = answer.step_on_same_machine
    return step.value if step is not None else None


def _interval(answer: Prediction) -> str | None:
    step = answer.step_on_same_machine
    return interval_range(step, duration) if step is not None and step.judged else None


def _doubt(answer: Prediction) -> str:
    return "" if answer.conclusive else "?"


def _factor(answer: Prediction) -> float | None:
    return answer.speed_up.value if answer.speed_up is not None else None


def detail_lines(answer: Prediction, palette: Palette) -> Iterator[Text]:
    """Yield what an answer says, what it rests on, and what it leaves out."""
    rows = [*main_rows(answer)]
    rows += zip(["rests on", *[""] * len(answer.rests_on)], answer.rests_on, strict=False)
    rows += zip(["leaves out", *[""] * len(answer.leaves_out)], answer.leaves_out, strict=False)
    for label, words in rows:
        if words:
            yield folded((f"{label:14}", palette.style("dim")), (words, None))
