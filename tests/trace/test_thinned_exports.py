"""Exports and queries of a thinned run: they agree with the report, or say that they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from profkit import cli
from profkit.frame.selection import THINNED
from profkit.metrics.points import of_overview
from profkit.trace import Trace
from tests.trace.test_thinning import record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "thinned"
    record(folder, thinned=True, steps=2_000)
    return folder


def test_metrics_have_the_steps_of_the_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from profkit.analysis.overview import build_overview

    assert cli.main(["report", str(run), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    used, excluded = [], {}
    for point in of_overview(build_overview(Trace.open(run)), None).points:
        if point.metric.name == "profkit_steps_used":
            used.append(point.value)
        if point.metric.name == "profkit_excluded_steps":
            excluded[point.labels["reason"]] = point.value
    assert used == [report["steps_used"]]
    assert excluded == report["steps_left_out"]
    assert THINNED not in excluded


@pytest.mark.parametrize("format_name", ["csv", "parquet"])
def test_exported_tables_hold_the_sums(
    run: Path, tmp_path: Path, format_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", str(run), "--steps", "all", "-w", str(tmp_path / "out")]
    assert cli.main([*arguments, "--format", format_name]) == 0
    assert "only sums and some steps were kept" in capsys.readouterr().err
    sums = Trace.open(run).sums
    file = tmp_path / "out" / f"sums.{format_name}"
    if format_name == "csv":
        assert len(file.read_text().splitlines()) == sums.num_rows + 1
    else:
        assert pq.read_table(file)["total_ns"].equals(sums["total_ns"])


def test_a_query_says_that_it_sees_a_sample(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")
    assert cli.main(["sql", str(run), "SELECT sum(steps) FROM sums WHERE phase IS NULL"]) == 0
    assert "only sums and some steps were kept" in capsys.readouterr().err
