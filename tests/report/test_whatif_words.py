"""What answers say as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.explain.predict.prediction import (
    FASTER,
    LINK,
    WITHOUT,
    WORKERS,
    Prediction,
    Question,
)
from profkit.frame.estimate import Estimate
from profkit.report.whatif_document import PREDICTIONS
from profkit.show import json as show_json
from profkit.show.document import Table


@pytest.mark.parametrize(
    ("question", "value"),
    [
        (Question(WORKERS, 0.0), 0.0),
        (Question(LINK, 2.0), 2.0),
        (Question(FASTER, 2.0, cause="data"), 2.0),
        (Question(WITHOUT, cause="late_rank"), None),
    ],
)
def test_a_value_is_null_only_if_there_is_none(question: Question, value: float | None) -> None:
    """No workers are a value as well."""
    answer = Prediction(question, Path("run"), Estimate(1.0), None, 1.0, 1.0)
    assert show_json.of(Table(PREDICTIONS, [answer]))[0]["question"]["value"] == value
