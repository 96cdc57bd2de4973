"""What answers and the record of predictions say, as text and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.analysis.estimate import Estimate
from profkit.explain.predict.prediction import (
    AMP,
    FASTER,
    LINK,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.report.whatif_document import prediction_json, record, record_json, record_words
from tests.predict.test_record import entry


def test_the_words_are_those_of_what_was_compared() -> None:
    unsure, sure, waits = entry("a", 1.0, conclusive=False), entry("a", 100.0), entry("a", None)
    question, nothing = Question("a"), "no such prediction was compared with a later run yet"
    known = "of 1 such prediction the median error was 0.0 %, 100 % fell inside"
    unsure_only = "of such predictions, only inconclusive ones were compared with a later run (1)"
    assert record_words(question, []) == nothing
    assert record_words(question, [waits]) == nothing
    assert record_words(question, [unsure, waits]) == unsure_only
    assert record_words(question, [sure]) == known
    assert record_words(question, [sure, unsure]) == (
        f"{known}; inconclusive ones are not counted (1)"
    )
    assert record_words(question, None) == ""


@pytest.mark.parametrize(
    ("question", "value"),
    [
        (Question(WORKERS, 0.0), 0.0),
        (Question(LINK, 2.0), 2.0),
        (Question(FASTER, 2.0, cause="data"), 2.0),
        (Question(AMP, 1.0), None),
        (Question(WITHOUT, cause="late_rank"), None),
    ],
)
def test_a_value_is_null_only_if_there_is_none(question: Question, value: float | None) -> None:
    """No workers are a value as well."""
    answer = Prediction(question, "run", Estimate(1.0), None, 1.0, 1.0)
    assert prediction_json(answer)["question"]["value"] == value


def test_the_table_agrees_with_its_summary() -> None:
    page = record([entry("a", None), entry("a", 10.0, conclusive=False)], Path("record"))
    assert page.verdict == "2 predictions, 1 of them scored"
    grid = page.sections[0].grid
    assert grid is not None
    assert dict(zip(grid.header, grid.rows[0], strict=True)) == {
        "kind": "a",
        "made": "2",
        "scored": "1",
        "conclusive": "0",
        "median error": "-",
        "inside": "-",
        "half of the interval": "-",
    }
    figures = record_json([entry("a", 10.0, conclusive=False)], Path("record"))["calibration"][0]
    assert (figures["scored"], figures["conclusive"]) == (1, 0)
