"""The stages of a pipeline of which not all ranks were recorded have no parts."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.place_costs import Pipeline
from profkit.explain.explained import explain
from profkit.frame.pipelines import find_pipelines
from profkit.frame.run_frame import frame_of
from profkit.report.sharded_sections import sharded_sections
from profkit.trace import Trace
from tests.analysis.test_exchange_places import run, sharded
from tests.documents import report_json
from tests.rules.test_sharded_rules import parts, pipeline

LENGTHS = {0: 8.0, 1: 20.0, 2: 8.0, 3: 8.0}


def made(folder: Path, config: Any, lost: int | None = None, **lengths: float) -> Trace:
    """Return a run of a pipeline of four ranks, of which one may be missing."""
    ms = {**LENGTHS, **{int(rank[1:]): length for rank, length in lengths.items()}}
    job = functools.partial(pipeline, ranks=4, ms=ms)
    trace = run(folder, job, ranks=4, config=config)
    if lost is not None:
        shutil.rmtree(trace.path / f"r{lost:05}")
    return Trace.open(trace.path)


def stated(count: Any, *own: Any) -> dict[int, dict[str, Any]]:
    """The configuration of ranks that hold these stages, of so many."""
    found = parts(*map(str, range(4)))
    for rank, config in found.items():
        config["pipeline"]["stages"] = count
        if own:
            config["pipeline"]["own_stages"] = own[rank]
    return found


def stages_of(trace: Trace) -> Pipeline:
    found = sharded(trace).pipeline
    assert found is not None
    return found


def is_open(found: Pipeline) -> bool:
    ends = set()
    for stage in found.stages:
        ends |= {stage.imbalance_ns, stage.bubble_ns, stage.rest_ns}
    return ends == {None}


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("config", [None, stated(4)])
def test_with_a_missing_rank_the_parts_of_the_waits_are_not_known(
    tmp_path: Path, lost: int, config: Any
) -> None:
    trace = made(tmp_path, config, lost)
    found = stages_of(trace)
    assert is_open(found)
    assert "1 rank left no files" in found.why
    here = [stage.rank for stage in found.stages]
    if config is not None:
        assert here == sorted({0, 1, 2, 3} - {lost}), "no rank disappears"
    assert all(stage.compute_ns > 0 for stage in found.stages)
    words = [note for section in sharded_sections(sharded(trace)) for note in section.notes]
    assert any("1 rank left no files" in note for note in words)
    assert not any("Imbalance:" in note for note in words)
    shown = report_json(build_overview(trace))["exchange_by_dimension"]["pipeline"]
    assert shown["why"] == found.why
    assert shown["stages"][0]["imbalance_ns"] is None


def test_the_messages_alone_leave_a_part_of_the_pipeline(tmp_path: Path) -> None:
    trace = made(tmp_path, stated(4), 1)
    assert find_pipelines(frame_of(trace).basis.collectives) == [[2, 3]]


@pytest.mark.parametrize(
    "config",
    [stated(5), stated(10**15), stated(4, [0], [0], [2], [3]), stated(4, [0], [1], [2], "3")],
)
def test_stages_that_no_rank_holds_are_missing(tmp_path: Path, config: Any) -> None:
    found = stages_of(made(tmp_path, config))
    assert is_open(found)
    assert "stages were recorded" in found.why


@pytest.mark.parametrize("config", [None, parts("a", "b", "c", "d"), stated(4)])
def test_a_whole_pipeline_has_all_its_parts(tmp_path: Path, config: Any) -> None:
    found = stages_of(made(tmp_path, config))
    assert not found.why
    assert [stage.rank for stage in found.stages] == [0, 1, 2, 3]
    assert found.stages[1].imbalance_ns == 0
    if config is not None:
        assert all(stage.rest_ns is not None for stage in found.stages)


def test_no_stage_is_uneven_against_a_part_of_the_pipeline(tmp_path: Path) -> None:
    base = made(tmp_path / "base", stated(4), 1)
    other = parts("a", "b", "c", "e")
    target = made(tmp_path / "target", other, 1, r3=40.0)
    kinds = {cause.kind for cause in explain(base, target).causes}
    assert not kinds & {"uneven_stages", "long_last_stage"}
