"""The time between phases has the phases around it, wherever a loop resets gradients."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profkit.frame.gaps import BEGIN, END, unknown_places
from profkit.vocab import ZERO_GRAD

STEPS, LENGTH = 3, 100
Part = tuple[str, str, int, int]
FORWARD, BACKWARD = ("forward", "forward", 10, 30), ("backward", "backward", 45, 70)
UPDATE = ("optimizer", "optimizer", 75, 80)


def _places(parts: list[Part]) -> dict[tuple[str, str], float]:
    """Return the places of equal steps that have these phases, with their start and end."""
    number = np.arange(STEPS)
    steps = pa.table(
        {
            "rank": [0] * STEPS,
            "step": number,
            "start_ns": LENGTH * number,
            "end_ns": LENGTH * (number + 1),
        }
    )
    rows = [
        {
            "rank": 0,
            "step": step,
            "phase": phase,
            "name": name,
            "depth": 0,
            "thread": "MainThread",
            "start_ns": LENGTH * step + start,
            "end_ns": LENGTH * step + end,
        }
        for step in range(STEPS)
        for phase, name, start, end in parts
    ]
    spans = pa.Table.from_pylist(rows)
    spans = spans.set_column(4, "depth", spans["depth"].cast(pa.int16()))
    found = unknown_places(steps, spans, number)
    return {(place.after, place.before): place.step_ns for place in found}


USUAL = {
    (BEGIN, "forward"): 10,
    ("forward", "backward"): 15,
    ("backward", "optimizer"): 5,
    ("optimizer", END): 20,
}


@pytest.mark.parametrize(
    ("start", "end", "place"),
    [
        (2, 6, (BEGIN, "forward")),
        (0, 10, (BEGIN, "forward")),
        (33, 40, ("forward", "backward")),
        (71, 74, ("backward", "optimizer")),
        (85, 98, ("optimizer", END)),
        (80, 100, ("optimizer", END)),
    ],
)
def test_a_reset_of_gradients_shortens_a_place_and_divides_none(
    start: int, end: int, place: tuple[str, str]
) -> None:
    parts = [FORWARD, BACKWARD, UPDATE]
    assert _places(parts) == USUAL
    expected = {**USUAL, place: USUAL[place] - (end - start)}
    assert _places([*parts, ("optimizer", ZERO_GRAD, start, end)]) == expected


def test_two_resets_in_a_row_are_in_one_place() -> None:
    """As of a generator and its judge."""
    resets = [("optimizer", ZERO_GRAD, 82, 85), ("optimizer", ZERO_GRAD, 86, 96)]
    expected = {**USUAL, ("optimizer", END): 7}
    assert _places([FORWARD, BACKWARD, UPDATE, *resets]) == expected


def test_a_step_of_resets_alone_has_one_place() -> None:
    assert _places([("optimizer", ZERO_GRAD, 20, 50)]) == {(BEGIN, END): 70}
