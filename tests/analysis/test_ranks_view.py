"""A late rank is found with its phase, and waiting counts for the rank that it was for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.ceilings import Ceilings, Links
from profkit.analysis.overview import build_overview
from profkit.analysis.views.ranks import RanksView, Wait, build_ranks_view, find_waits
from profkit.clock import Anchor
from profkit.frame.exchange import match_collectives
from profkit.frame.phases import UNKNOWN
from profkit.testing.synthetic import synthetic_trace
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from tests.analysis.tables import Span, rows_table, spans_table

LATE_NS = 9_000_000
USUAL_NS = 2_000_000


def _view(folder: Path, ceilings: Ceilings | None = None, **plan: Any) -> RanksView:
    return build_ranks_view(Trace.open(synthetic_trace(folder, **plan)), ceilings)


def test_the_late_rank_stands_out_in_its_phase_and_is_whom_all_wait_for(tmp_path: Path) -> None:
    view = _view(
        tmp_path / "run", ranks=4, buckets=1, jitter=0.0, rank_phase_ns={2: {"data": LATE_NS}}
    )
    rank, phase, excess = view.most_deviating or (None, None, None)
    assert (rank, phase) == (2, "data")
    assert excess == pytest.approx(LATE_NS - USUAL_NS)
    assert view.median_ns["data"] == pytest.approx(USUAL_NS)
    assert view.late_rank is not None
    assert view.late_rank.rank == 2
    assert view.waits is not None
    assert {(wait.rank, wait.late_rank) for wait in view.waits} == {(0, 2), (1, 2), (3, 2)}
    for wait in view.waits:
        assert wait.collectives == view.collectives
        assert wait.waiting_ns == pytest.approx(LATE_NS - USUAL_NS, rel=0.01)
        assert 0 < wait.exposed_ns <= wait.waiting_ns


def test_several_collectives_that_wait_at_once_count_once() -> None:
    times = {("a", 0): (0, 10), ("a", 1): (8, 10), ("b", 0): (5, 20), ("b", 1): (19, 20)}
    told = {
        "sequence": 0,
        "op": "all_reduce",
        "bytes": 8,
        "dtype": "float32",
        "group_size": 2,
        "backend": "gloo",
        "step": 0,
    }
    rows = [
        {**told, "communicator": group, "rank": rank, "start_ns": start, "end_ns": end}
        for (group, rank), (start, end) in times.items()
    ]
    exposed = spans_table([Span(rank, 0, "allreduce", 0, "MainThread", 10, 20) for rank in (0, 1)])
    found = find_waits(
        match_collectives(rows_table("collectives", rows), np.arange(1)), exposed, np.arange(1)
    )
    assert found == (Wait(rank=0, late_rank=1, waiting_ns=19.0, exposed_ns=9.0, collectives=2),)


def test_ranks_phases_are_those_of_the_overview_on_average(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=3, rank_phase_ns={1: {"forward": 15_000_000}})
    view, overview = build_ranks_view(Trace.open(run)), build_overview(Trace.open(run))
    assert view.phases == tuple(part.name for part in overview.phases)
    for part in overview.phases:
        assert sum(row.phase_ns[part.name] for row in view.ranks) / 3 == pytest.approx(
            part.step_ns.value
        )
    assert sum(row.wall_ns or 0.0 for row in view.ranks) / 3 == pytest.approx(
        overview.step_ns.value
    )
    for row in view.ranks:
        assert sum(row.phase_ns.values()) == pytest.approx(row.wall_ns)


def test_the_links_are_held_against_what_they_reach_alone(tmp_path: Path) -> None:
    ceilings = Ceilings(links=(Links("gloo", 2, (1_000, 100_000_000), (1e9, 1e9)),))
    view = _view(tmp_path / "run", ceilings, ranks=2)
    assert [use.ceiling_bus_bytes_per_s for use in view.sizes] == pytest.approx([1e9, 1e9])
    assert view.sizes[0].bytes < view.sizes[1].bytes


def test_where_a_ranks_files_are_missing_nobody_can_say_who_waited(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2)
    (run / "r00001" / "collectives.arrows").unlink()
    view = build_ranks_view(Trace.open(run))
    assert view.waits is None
    assert (view.collectives > 0, view.matched) == (True, 0)


def test_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    view = _view(tmp_path / "run", jitter=0.0)
    assert (view.waits, view.late_rank, view.sizes, view.exchange, view.most_deviating) == (
        (),
        None,
        (),
        (),
        None,
    )
    assert view.ranks[0].deviation_ns == pytest.approx(
        dict.fromkeys((*view.phases[:-1], UNKNOWN), 0.0)
    )


def test_a_run_without_used_steps_shows_its_ranks_alone(tmp_path: Path) -> None:
    view = _view(tmp_path / "run", ranks=2, steps=3, config={"warmup": 3})
    assert [(row.rank, row.wall_ns, row.phase_ns) for row in view.ranks] == [
        (0, None, {}),
        (1, None, {}),
    ]
    assert (view.steps, view.phases, view.sizes) == (0, (), ())


def test_collectives_in_kernel_windows_are_told_with_the_ranks_where_they_are_shortest_and_longest(
    tmp_path: Path,
) -> None:
    files = [RankFiles(tmp_path / f"r{rank:05d}", rank) for rank in (0, 1)]
    RunManifest("w", world_size=2).write(tmp_path)
    for rank, (each, length) in enumerate(zip(files, (10, 4), strict=True)):
        rows = [
            ("ncclDevKernel_AllReduce", "communication", 0, length),
            ("sgemm", "gemm", 0, 99),
            ("ncclDevKernel_AllReduce", "communication", 1, length + 2),
        ]
        names, categories, steps, lengths = zip(*rows, strict=True)
        told = {
            "name": names,
            "category": categories,
            "step": steps,
            "start_ns": (5, 5, 5),
            "end_ns": [5 + length for length in lengths],
        }
        each.write("kernels", {"device": ["cuda:0"] * 3, "stream": [7] * 3, **told})
        each.close()
        RankManifest(rank, "", 0, "cuda:0", Anchor(0, 0, 0)).write(each.folder)
    (found,) = build_ranks_view(Trace.open(tmp_path)).in_windows
    assert (found.name, found.ranks, found.calls, found.mean_ns) == (
        "ncclDevKernel_AllReduce",
        2,
        4,
        8.0,
    )
    assert (
        found.shortest_rank,
        found.shortest_rank_ns,
        found.longest_rank,
        found.longest_rank_ns,
    ) == (1, 5.0, 0, 11.0)
    assert found.ns_per_step == pytest.approx(32 / 4)


def test_a_broadcast_among_three_ranks_is_no_waiting_for_one_of_them() -> None:
    told = {"sequence": 0, "op": "broadcast", "bytes": 8, "dtype": "float32", "group_size": 3}
    told |= {"communicator": "a", "backend": "gloo", "step": 0}
    times = enumerate([(0, 2), (50, 60), (0, 60)])
    rows = [
        {**told, "rank": rank, "start_ns": start, "end_ns": end} for rank, (start, end) in times
    ]
    exposed = spans_table([Span(rank, 0, "allreduce", 0, "MainThread", 0, 60) for rank in range(3)])
    table = rows_table("collectives", rows)
    assert find_waits(match_collectives(table, np.arange(1)), exposed, np.arange(1)) == ()
