"""Parts of large tables: some columns, one row, without unpacking the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.testing import synthetic_trace
from profkit.trace.reader import LOST_NAME, RankTrace, Trace
from profkit.trace.stream import LARGEST_BATCH

COLUMNS = ("start_ns", "name", "category")


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> RankTrace:
    """Kernels in more than one batch."""
    run = synthetic_trace(
        tmp_path_factory.mktemp("runs") / "run", steps=70, kernels_per_step=1000, device="cuda"
    )
    return Trace.open(run).ranks[0]


def test_some_columns_are_those_of_the_whole_table(rank: RankTrace) -> None:
    some, problem = rank.select("kernels", COLUMNS)
    assert problem == ""
    assert some.equals(rank.table("kernels").select(COLUMNS))


@pytest.mark.parametrize("place", [0, 1, LARGEST_BATCH - 1, LARGEST_BATCH, 69_999])
def test_a_row_is_that_of_the_whole_table(rank: RankTrace, place: int) -> None:
    assert rank.row("kernels", place) == rank.table("kernels").slice(place, 1).to_pylist()[0]


def test_a_row_that_is_not_there_is_none(rank: RankTrace) -> None:
    assert rank.row("kernels", 70_000) is None
    assert rank.row("collectives", 0) is None


def test_what_is_damaged_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=70, kernels_per_step=1000)
    path = run / "r00000" / "kernels.arrows"
    path.write_bytes(path.read_bytes()[:-5_000])
    torn = Trace.open(run).ranks[0]
    some, problem = torn.select("kernels", COLUMNS)
    assert problem
    assert some.num_rows == LARGEST_BATCH
    assert torn.row("kernels", LARGEST_BATCH) is None


def test_a_lost_name_is_said(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=2)
    (run / "r00000" / "strings.arrows").unlink()
    row = Trace.open(run).ranks[0].row("spans", 0)
    assert row is not None
    assert row["phase"] == LOST_NAME
