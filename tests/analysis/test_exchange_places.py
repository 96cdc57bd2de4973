"""The exposed exchange by dimension, and the waits of a pipeline's stages, on played runs."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.exchange_places import BETWEEN, find_places, is_sharded
from profkit.analysis.overview import build_overview
from profkit.analysis.place_costs import ShardedExchange
from profkit.frame.run_frame import frame_of
from profkit.report.sharded_sections import sharded_sections
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import rank_folder
from tests.documents import report_json
from tests.rules.test_sharded_rules import MODULES, fsdp, parts, pipeline
from tests.sharded_runs import Action, Begin, Phase, Wait, Work, both, sharded_run

MS = 1e6


def run(folder: Path, job: Any, *, ranks: int = 2, config: Any = None, **options: Any) -> Trace:
    def script(rank: int) -> list[Action]:
        return list(job(rank, **options))

    return Trace.open(sharded_run(folder / "run", script, ranks=ranks, config=config))


def sharded(trace: Trace) -> ShardedExchange:
    found = build_overview(trace).sharded
    assert found is not None
    return found


def test_waits_add_up_to_the_exposed_exchange(tmp_path: Path) -> None:
    trace = run(tmp_path, fsdp, late={1: 5.0}, prefetch=True)
    basis = frame_of(trace).basis
    places, exchange = find_places(basis.collectives, basis.spans, basis.used), basis.exchange
    assert places is not None
    assert exchange is not None
    whole = sum(rank.exposed_ns for rank in exchange.ranks) * len(basis.used)
    assert sum(part.sum() for part in places.by_step(split=False).values()) == whole
    assert sum(part.sum() for part in places.by_step(split=True).values()) == whole


def test_each_wait_is_for_its_own_module_and_phase(tmp_path: Path) -> None:
    found = sharded(run(tmp_path, fsdp))
    by_place = {(each.op, each.around): each for each in found.places}
    forward = by_place["all_gather", "forward"]
    assert forward.operations == 4
    assert forward.bytes == 4 * 8 * 2**20
    assert set(forward.modules) == set(MODULES)
    for ns in forward.modules.values():  # those after the first begin when the one before ends
        assert ns == pytest.approx(2.05 * MS, rel=0.1)
    assert by_place["reduce_scatter", "backward"].operations == 4
    assert found.is_complete
    assert forward.waiting_ns == pytest.approx(0.1 * MS, abs=0.1 * MS)


def test_prefetched_gathers_are_hidden(tmp_path: Path) -> None:
    by_place = {
        (each.op, each.around): each for each in sharded(run(tmp_path, fsdp, prefetch=True)).places
    }
    gathers = by_place["all_gather", "forward"]
    assert gathers.exposed_ns == pytest.approx(2.05 * MS, rel=0.15)  # of the first alone
    assert gathers.hidden_ns == pytest.approx(3 * 2.05 * MS, rel=0.15)


def hybrid(rank: int, late: int = 3) -> list[Action]:
    """Four ranks: each two of `tp` add in forward, each two of `dp` after it."""
    tp = (0, 1) if rank < 2 else (2, 3)
    dp = (rank % 2, rank % 2 + 2)
    work = Work(20.0 if rank == late else 10.0)
    return [
        Phase("forward"),
        work,
        *both(Begin(f"{tp}", "all_reduce", tp, 1.0, "tp")),
        Phase("backward"),
        Work(10.0),
        *both(Begin(f"{dp}", "all_reduce", dp, 1.0, "dp")),
        Phase(),
    ]


def test_a_rank_is_late_against_its_own_group_alone(tmp_path: Path) -> None:
    late = {each.dimension: each for each in sharded(run(tmp_path, hybrid, ranks=4)).late}
    assert late["tp"].rank == 3
    assert late["tp"].waited_ns == pytest.approx(10 * MS, rel=0.1)
    # Rank 2 waited for rank 3, so both are late for their groups of the other dimension.
    assert "dp" not in late


def clipped(rank: int) -> Iterator[Action]:
    """A pipeline of two stages, which clip their gradients together."""
    yield from pipeline(rank)
    yield from both(Begin("clip", "all_reduce", (0, 1), 0.5, "world"))


def test_stages_of_one_pipeline_are_not_late_for_each_other(tmp_path: Path) -> None:
    trace = run(tmp_path, clipped)  # the first stage has the last backward
    assert sharded(trace).late == ()
    exchange = frame_of(trace).basis.exchange
    assert exchange is not None
    assert exchange.waited_for == {}


def replicas(rank: int, late: int = 3) -> Iterator[Action]:
    """Two pipelines, which add their gradients stage by stage, and then clip them together."""
    first = rank // 2 * 2
    for action in pipeline(rank % 2):
        if isinstance(action, Begin):
            ranks = tuple(first + each for each in action.ranks)
            yield dataclasses.replace(action, key=f"{first} {action.key}", ranks=ranks)
        elif isinstance(action, Wait):
            yield Wait(f"{first} {action.key}")
        else:
            yield action
    yield Work(12.0 if rank == late else 2.0)
    same = (rank % 2, rank % 2 + 2)
    yield from both(Begin(f"{same}", "all_reduce", same, 1.0, "dp"))
    yield from both(Begin("clip", "all_reduce", (0, 1, 2, 3), 0.1, "world"))


def test_a_stage_is_late_against_the_same_stage_of_other_pipelines(tmp_path: Path) -> None:
    found = sharded(run(tmp_path, replicas, ranks=4))
    assert [(each.dimension, each.rank) for each in found.late] == [("dp", 3)]
    assert found.pipeline is not None
    assert [each.rank for each in found.pipeline.stages] == [0, 1, 2, 3]


def reporting(rank: int) -> Iterator[Action]:
    """Two ranks, of which the second is late and sends its figures to the first one."""
    yield Work(10.0 + 5.0 * rank)
    yield from both(Begin("sum", "all_reduce", (0, 1), 1.0, "dp"))
    yield from both(Begin("figures", ("recv", "send")[rank], (1, 0), 0.1, "dp"))


def test_messages_in_one_way_make_no_pipeline(tmp_path: Path) -> None:
    (late,) = sharded(run(tmp_path, reporting)).late
    assert late.rank == 1


def test_a_pipeline_waits_for_the_schedule_and_the_longest_stage(tmp_path: Path) -> None:
    trace = run(tmp_path, pipeline, ms={0: 12.0, 1: 8.0}, config=parts("a", "b"), send_ms=0.05)
    found = sharded(trace).pipeline
    assert found is not None
    assert found.schedule == "ScheduleGPipe"
    assert found.microbatches == 4
    first, last = found.stages
    assert first.stages == (0,)
    assert first.compute_ns == pytest.approx(36 * MS, rel=0.05)
    assert first.imbalance_ns == 0
    assert last.imbalance_ns == pytest.approx(12 * MS, rel=0.05)
    assert first.bubble_ns == last.bubble_ns == pytest.approx(24 / 4 * MS, rel=0.05)
    for each in found.stages:
        assert each.rest_ns is not None
        total = (each.imbalance_ns or 0) + (each.bubble_ns or 0) + each.rest_ns
        assert total == pytest.approx(each.exposed_ns)


def test_an_unknown_schedule_has_no_bubble(tmp_path: Path) -> None:
    found = sharded(run(tmp_path, pipeline))
    assert found.pipeline is not None
    assert {each.bubble_ns for each in found.pipeline.stages} == {None}
    words = [note for section in sharded_sections(found) for note in section.notes]
    assert any("is not known" in note for note in words)


def test_a_wait_between_phases_is_named_so(tmp_path: Path) -> None:
    assert {each.around for each in sharded(run(tmp_path, pipeline)).places} == {BETWEEN}


def test_every_figure_of_the_screen_is_in_the_json(tmp_path: Path) -> None:
    view = build_overview(run(tmp_path, pipeline, config=parts("a", "b")))
    found = report_json(view)["exchange_by_dimension"]
    assert {each["dimension"] for each in found["places"]} == {"pp"}
    assert {each["rank"] for each in found["pipeline"]["stages"]} == {0, 1}
    assert "rest_ns" in found["pipeline"]["stages"][0]


def test_collectives_that_a_rank_did_not_record_leave_the_parts_open(tmp_path: Path) -> None:
    def job(rank: int) -> list[Action]:
        begin = Begin("x", "all_gather", (0, 1), 1.0, "fsdp", "m")
        last = [Begin("y", "all_gather", (0, 1), 1.0, "tp", "m")] if rank else []
        return [Phase("forward"), Work(5.0), begin, Wait("x"), *last, Phase()]

    found = sharded(run(tmp_path, job))
    assert not found.is_complete
    for each in found.places:
        assert (each.waiting_ns is None) == (each.transfer_ns is None) == (each.dimension == "tp")
        if each.dimension == "fsdp":
            assert each.transfer_ns == pytest.approx(1.0 * MS, rel=0.05)
    assert "32 of 64 collectives were not seen on all of their ranks" in found.why
    assert "32 of them by the communicator tp:(0, 1)" in found.why
    words = [note for section in sharded_sections(found) for note in section.notes]
    assert any(found.why in note for note in words)
    assert any("In tp, it is not known" in note for note in words)
    assert not any("record all ranks" in note for note in words), "they were"


def test_an_unmatched_collective_leaves_open_what_it_may_have_delayed(tmp_path: Path) -> None:
    def job(rank: int) -> list[Action]:
        begin = Begin("x", "all_gather", (0, 1), 1.0, "fsdp", "m")
        alone = [Begin("y", "all_gather", (0, 1), 9.0, "tp", "m")] if rank else []
        return [Phase("forward"), Work(5.0), *alone, begin, Wait("x"), Phase()]

    found = sharded(run(tmp_path, job))
    assert {each.waiting_ns for each in found.places} == {None}
    assert found.unknown == ("fsdp", "tp")


def test_without_a_rank_all_ranks_are_to_be_recorded(tmp_path: Path) -> None:
    trace = run(tmp_path, fsdp)
    shutil.rmtree(trace.path / rank_folder(1))
    found = sharded(Trace.open(trace.path))
    assert "1 rank left no files" in found.why
    words = [note for section in sharded_sections(found) for note in section.notes]
    assert any("1 rank left no files" in note and "record all ranks" in note for note in words)


def test_a_job_of_plain_ddp_has_no_places(tmp_path: Path) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "ddp", ranks=2, steps=30))
    assert not is_sharded(trace.collectives)
    assert build_overview(trace).sharded is None
