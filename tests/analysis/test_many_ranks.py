"""What makes many ranks quick changes no figure: each is compared with the slow way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.whatif import step_replay
from profkit.analysis.whatif.changes import GRID, count_below, expected_maximum
from profkit.analysis.whatif.step_model import StepModel, build_model
from profkit.frame.estimate import Floats
from profkit.frame.run_frame import frame_of
from profkit.plain_file import open_plain
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace, reader

COUNTS = (1, 2, 5, 8, 64, 1_024)


def slow_maximum(values: Floats, count: int) -> float:
    """Return the expected maximum, from the chance that each value is the longest."""
    ordered = np.sort(values.ravel())
    found, before = 0.0, 0.0
    for value in ordered:
        shares = (values <= value).mean(axis=1)
        reached = shares.mean() ** count
        if count >= len(values):
            reached = np.prod(shares ** (count / len(values)))
        found += (reached - before) * value
        before = reached
    return found


@pytest.mark.parametrize("shape", [(1, 40), (8, 30), (20, 17)])
def test_the_expected_maximum_is_that_of_the_slow_formula(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).gamma(2.0, 1e6, shape)
    values[:, :3] = values[0, 0]  # equal ones as well
    assert values.size <= GRID, "so the grid holds every value"
    expected = [slow_maximum(values, count) for count in COUNTS]
    assert expected_maximum(values, COUNTS) == pytest.approx(expected, rel=1e-9)


def test_values_below_the_points_of_a_grid_are_counted_by_row() -> None:
    values = np.random.default_rng(1).integers(0, 9, (50, 11)).astype(float)
    grid = np.array([0.0, 2.0, 2.0, 5.5, 8.0])
    expected = (values[:, None, :] <= grid[None, :, None]).sum(axis=2)
    assert (count_below(values, grid) == expected).all()


def model_of(folder: Path) -> StepModel:
    trace = Trace.open(synthetic_trace(folder, ranks=4, steps=30, jitter=0.3, seed=3))
    return build_model(trace, frame_of(trace).basis)


def test_ranks_that_are_alike_are_replayed_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(tmp_path / "run")
    assert step_replay.are_alike(model)
    at_once = step_replay.replay(model)
    monkeypatch.setattr(step_replay, "are_alike", lambda _: False)
    assert (step_replay.replay(model) == at_once).all()


def test_ranks_of_other_events_are_not_alike(tmp_path: Path) -> None:
    model = model_of(tmp_path / "run")
    last = model.lines[-1]
    turned = dataclasses.replace(last, events=last.events[::-1])
    other = dataclasses.replace(model, lines=(*model.lines[:-1], turned))
    assert not step_replay.are_alike(other)


def test_the_small_pieces_of_ranks_are_joined_and_large_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=3, steps=20)
    joined = Trace.open(run).spans
    monkeypatch.setattr(reader, "MOST_JOINED_ROWS", 10)
    pieces = Trace.open(run).spans
    assert (joined["rank"].num_chunks, pieces["rank"].num_chunks) == (1, 3)
    assert joined.equals(pieces)


def test_a_small_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Trace.open(synthetic_trace(tmp_path / "run")).ranks[0]
    assert rank.end is not None
    monkeypatch.delattr(pa, "memory_map")
    opened = list[str | Path]()

    def counted(path: str | Path) -> BinaryIO:
        opened.append(path)
        return open_plain(path)

    monkeypatch.setattr("profkit.trace.stream.open_plain", counted)
    monkeypatch.setattr("profkit.trace.rank.file_checksum", None)
    assert rank.content("steps").closed
    assert not rank.content("steps").problem
    assert opened == [rank.path("steps")]
