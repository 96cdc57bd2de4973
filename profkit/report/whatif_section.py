"""The predictions of a run as one section, for a page that is about more than them."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.predict.prediction import Prediction
from profkit.report.document import Grid, Section
from profkit.report.words import interval_in_brackets
from profkit.text import duration, significant


def answers_section(answers: Sequence[Prediction]) -> Section:
    """Return a row for each answer."""
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
