"""Logs of jobs whose model is split among ranks: figures per rank, and of the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit.analysis.costs import run_costs
from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.report import as_text
from profkit.report.ledger_document import explained
from profkit.trace import Trace
from tests.importers.logs.samples import BATCH, SAMPLES, STEP_S

SPLIT = "using world size: 8, data-parallel size: 2"
WHOLE = "using world size: 8, data-parallel size: 8"


@pytest.fixture
def split(tmp_path: Path) -> Trace:
    return imported(tmp_path, "split", SAMPLES["megatron"].text)


def imported(folder: Path, name: str, text: str) -> Trace:
    path = folder / f"{name}.log"
    path.write_text(text)
    (made,) = IMPORTER.read([path], Target(folder / "traces"))
    return Trace.open(made.run)


def test_the_throughput_is_that_of_all_ranks(split: Trace) -> None:
    view = build_overview(split)
    assert view.throughput.value == pytest.approx(BATCH / STEP_S, rel=1e-3)
    text = as_text.overview(view)
    assert "80.00 samples/s" in text
    assert "of all 8 ranks" in text
    assert "10.00 samples/s" in text  # of one rank
    assert "8 ranks (dp 2 x tp 2 x pp 2)" in text
    assert "the log is of one rank; it has only the timers of the other 7" in text


def test_costs_are_those_of_the_ranks_that_share_a_sample(split: Trace) -> None:
    costs = run_costs(split)
    assert costs.ranks == 4
    per_rank = costs.wall_ns.sum() / costs.steps / costs.ranks
    assert per_rank == pytest.approx(STEP_S * 1e9, rel=1e-3)
    assert costs.wall_ns.sum() / costs.samples.sum() == pytest.approx(
        8 * STEP_S * 1e9 / BATCH, rel=1e-3
    )


def test_another_split_of_the_same_job_takes_as_long_per_sample(
    split: Trace, tmp_path: Path
) -> None:
    text = SAMPLES["megatron"].text
    assert SPLIT in text
    whole = imported(tmp_path, "whole", text.replace(SPLIT, WHOLE))
    view = explain(split, whole)
    assert view.ledger.change.value == pytest.approx(0, abs=1e-3)
    document = as_text.document(explained(view, ()))
    assert document.count("80.00 samples/s") == 2
    assert "took no time" not in document
    assert "too few lines of a log state different times" in document


def test_nested_timers_are_in_no_row(split: Trace) -> None:
    assert split.spans.num_rows == 0
    text = as_text.overview(build_overview(split))
    assert "timer forward-backward 599 ms (the slowest rank, 380.1 the fastest" in text
    assert "timers may contain each other" in text
