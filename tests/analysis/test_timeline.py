"""A timeline shows lanes, gaps, late ranks and clocks, also from the cache on disk."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.timeline import cache as timeline_cache
from profkit.analysis.timeline import lane_store
from profkit.analysis.timeline.cache import LaneCache
from profkit.analysis.timeline.clocks import OWN_CLOCKS, SAME_CLOCK, TIME_OF_DAY
from profkit.analysis.timeline.lane_store import LAUNCHES
from profkit.analysis.timeline.lanes import COLUMNS, Group, Lane, lanes_of
from profkit.analysis.timeline.levels import NONE
from profkit.analysis.timeline.opening import open_timeline, still_to_read
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import READING, Request, Row, as_json, view_timeline
from profkit.analysis.timeline.window import Window
from profkit.clock import Anchor
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, RunManifest, Trace
from profkit.trace.files import RankFiles
from profkit.vocab import RunState, rank_folder

HOSTILE = "\x1b[31mred[/b]\u202e" + "x" * 4_000 + "\N{SMILING FACE WITH SUNGLASSES}"


def _write(
    folder: Path,
    ranks: list[dict[str, dict[str, list[Any]]]],
    *,
    hosts: tuple[str, ...] = ("here",),
    anchors: tuple[Anchor, ...] = (Anchor(0, 0, 0),),
) -> Trace:
    """A run of hand-made tables, one dict of tables a rank."""
    folder.mkdir()
    for rank, tables in enumerate(ranks):
        files = RankFiles(folder / rank_folder(rank), rank)
        RankManifest(rank, hosts[rank % len(hosts)], 1, "cuda", anchors[rank % len(anchors)]).write(
            files.folder
        )
        for table, columns in tables.items():
            files.write(table, columns)
        files.close()
    RunManifest(workload="made", state=RunState.COMPLETE, world_size=max(1, len(ranks))).write(
        folder
    )
    return Trace.open(folder)


def _steps(*borders: int) -> dict[str, list[Any]]:
    count = len(borders) - 1
    return {
        "step": list(range(count)),
        "start_ns": list(borders[:-1]),
        "end_ns": list(borders[1:]),
        "sample_count": [1] * count,
        "instrumented": [True] * count,
    }


def _spans(*rows: tuple[str, int, str, int, int]) -> dict[str, list[Any]]:
    phase, depth, thread, start, end = (list(column) for column in zip(*rows, strict=True))
    return {
        "phase": phase,
        "name": phase,
        "depth": depth,
        "thread": thread,
        "start_ns": start,
        "end_ns": end,
    }


def _kernels(*rows: tuple[str, int, str, int, int]) -> dict[str, list[Any]]:
    device, stream, category, start, end = (list(column) for column in zip(*rows, strict=True))
    return {
        "device": device,
        "stream": stream,
        "category": category,
        "name": [f"{each}_kernel" for each in category],
        "start_ns": start,
        "end_ns": end,
    }


def _collectives(*rows: tuple[int, int, int]) -> dict[str, list[Any]]:
    sequence, start, end = (list(column) for column in zip(*rows, strict=True))
    same = len(sequence)
    names = {
        "communicator": ["dp"] * same,
        "op": ["all_reduce"] * same,
        "dtype": ["float32"] * same,
        "backend": ["nccl"] * same,
    }
    return {
        **names,
        "sequence": sequence,
        "bytes": [8] * same,
        "group_size": [2] * same,
        "start_ns": start,
        "end_ns": end,
        "step": [0] * same,
    }


def _shown(row: Row) -> str:
    """The first letter of what each cell shows."""
    return "".join("." if kind == NONE else row.kind_names[kind][0] for kind in row.kinds)


def _row(timeline: Timeline, window: Window, group: Group, label: str) -> Row:
    view = view_timeline(
        timeline,
        Request(
            window,
            timeline.ranks,
            group if group is not Group.STREAMS else Group.PHASES,
            expanded=0,
        ),
    )
    return next(
        row for row in view.rows if row.rank == 0 and row.group is group and row.label == label
    )


@pytest.fixture
def made(tmp_path: Path) -> Timeline:
    """Two ranks of one step of 100 ns; rank 1 comes to the collective 20 ns later."""
    spans = _spans(
        ("forward", 0, "Main", 1_000, 1_040),
        ("other", 1, "Main", 1_010, 1_020),
        ("backward", 0, "Main", 1_050, 1_090),
        ("data", 1, "worker", 1_000, 1_100),
    )
    kernels = _kernels(
        ("cuda:0", 7, "gemm", 1_000, 1_030),
        ("cuda:0", 7, "gemm", 1_060, 1_090),
        ("cuda:0", 13, "copy", 1_020, 1_050),
    )
    first = {
        "steps": _steps(1_000, 1_100),
        "spans": spans,
        "kernels": kernels,
        "collectives": _collectives((0, 1_050, 1_090)),
    }
    second = {"steps": _steps(1_000, 1_100), "collectives": _collectives((0, 1_070, 1_090))}
    return Timeline(_write(tmp_path / "run", [first, second]))


WHOLE = Window(0, 100, 10)


def test_time_begins_with_the_first_step(made: Timeline) -> None:
    assert made.bounds == (0, 100)
    assert made.step_bounds(0) == (0, 100)
    assert made.step_bounds(1) is None
    assert made.clocks == SAME_CLOCK


def test_phases_show_the_innermost_region_of_the_thread_that_trains(made: Timeline) -> None:
    """The device was not timed, so that these are the host's."""
    assert _shown(_row(made, WHOLE, Group.PHASES, LAUNCHES)) == "foff.bbbb."


def test_regions_stand_below_by_thread_and_depth(made: Timeline) -> None:
    assert [lane.label for lane in made.lanes(0, Group.REGIONS)] == ["+1 Main", "+1 worker"]
    assert _shown(_row(made, WHOLE, Group.REGIONS, "+1 worker")) == "d" * 10


def test_kernels_are_shown_by_stream_and_by_device(made: Timeline) -> None:
    assert _shown(_row(made, WHOLE, Group.STREAMS, "cuda:0 stream 7")) == "ggg...ggg."
    assert _shown(_row(made, WHOLE, Group.STREAMS, "cuda:0 stream 13")) == "..ccc....."
    assert _shown(_row(made, WHOLE, Group.DEVICES, "cuda:0")) == "gggcc.ggg."


def test_names_stand_over_what_fills_cells(made: Timeline) -> None:
    labels = _row(made, WHOLE, Group.STREAMS, "cuda:0 stream 7").labels
    assert [tuple(label) for label in labels] == [(0, 3, "gemm_kernel"), (6, 3, "gemm_kernel")]


def test_a_rank_without_something_says_so(made: Timeline) -> None:
    view = view_timeline(made, Request(WHOLE, made.ranks, Group.DEVICES))
    assert [(row.rank, row.note) for row in view.rows] == [(0, ""), (1, "no kernels captured")]


def test_cells_tile_the_window_to_the_nanosecond(made: Timeline) -> None:
    row = _row(made, Window(3, 98, 7), Group.STREAMS, "cuda:0 stream 7")
    borders = Window(3, 98, 7).borders
    expected = [
        sum(low <= at < high for at in (*range(30), *range(60, 90)))
        for low, high in itertools.pairwise(borders)
    ]
    assert row.covered_ns.tolist() == expected


def test_the_next_gap_and_the_one_before(made: Timeline) -> None:
    lane = made.lanes(0, Group.DEVICES)[0]
    assert made.gap(0, lane, 0, 5) == (50, 60)
    assert made.gap(0, lane, 0, 10) is None
    assert made.gap(0, lane, 100, 5, back=True) == (50, 60)
    assert made.gap(0, lane.at_least(31), 0, 5) is None


def test_who_came_last_is_told_by_durations(made: Timeline) -> None:
    found = made.late(0, 10)
    assert found is not None
    assert (found.time_ns, found.rank, found.waited_ns, found.step) == (70, 1, 20, 0)
    assert made.late(0, 20) is None
    assert made.late(70, 10) is None
    assert made.late(71, 10, back=True) == found


def test_an_event_has_all_that_its_table_says(made: Timeline) -> None:
    lane = made.lanes(0, Group.DEVICES)[0]
    piece = lane.level.longest_in(1_055, 1_100)
    assert piece is not None
    event = made.event(0, lane, piece)
    assert event is not None
    assert (event.name, event.kind, event.start_ns, event.duration_ns) == (
        "gemm_kernel",
        "gemm",
        60,
        30,
    )
    assert event.fields == {"device": "cuda:0", "stream": 7, "category": "gemm"}


def test_names_are_found_from_a_moment_on(made: Timeline) -> None:
    lane = made.lanes(0, Group.DEVICES)[0]
    assert made.find(0, lane, lambda name: "copy" in name, 0) == 1
    assert made.find(0, lane, lambda name: "gemm" in name, 0) == 2
    assert made.find(0, lane, lambda name: "gemm" in name, 60, back=True) == 0
    assert made.find(0, lane, lambda name: "nothing" in name, 0) is None


def test_nothing_is_read_before_it_is_shown(made: Timeline) -> None:
    request = Request(WHOLE, made.ranks, Group.PHASES, expanded=0)
    assert {row.note for row in view_timeline(made, request, wait=False).rows} == {READING}
    for read in still_to_read(made, request):
        assert view_timeline(made, request, wait=False).pending
        read()
    assert not view_timeline(made, request, wait=False).pending


def test_what_was_not_shown_for_longest_is_let_go(
    made: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_store, "MOST_PIECES", 4)
    made.lanes(0, Group.PHASES)
    made.lanes(0, Group.DEVICES)
    assert not made.ready(0, Group.PHASES)
    assert made.ready(0, Group.DEVICES)


@pytest.mark.parametrize(
    ("hosts", "anchors", "clocks", "second"),
    [
        (("a",), (Anchor(0, 500, 0), Anchor(40, 500, 0)), SAME_CLOCK, 0),
        (("a", "b"), (Anchor(0, 500, 0), Anchor(40, 500, 0)), TIME_OF_DAY, -40),
        (("a", "b"), (Anchor(0, 500, 0), Anchor(40, 0, 0)), OWN_CLOCKS, 0),
    ],
)
def test_clocks_of_hosts_are_brought_together(
    tmp_path: Path, hosts: tuple[str, ...], anchors: tuple[Anchor, ...], clocks: str, second: int
) -> None:
    ranks = [{"steps": _steps(1_000, 1_100)}, {"steps": _steps(1_000, 1_100)}]
    timeline = Timeline(_write(tmp_path / "run", ranks, hosts=hosts, anchors=anchors))
    assert timeline.clocks == clocks
    assert int(timeline.steps(1).start_ns[0]) - int(timeline.steps(0).start_ns[0]) == second


def test_a_run_without_steps_begins_with_its_first_event(tmp_path: Path) -> None:
    timeline = Timeline(
        _write(tmp_path / "run", [{"kernels": _kernels(("cuda:0", 7, "gemm", 5_000, 5_030))}])
    )
    timeline.lanes(0, Group.DEVICES)
    assert timeline.bounds == (0, 30)
    assert timeline.step_range() is None
    assert timeline.late(0, 0) is None


def test_a_run_without_phases_shows_its_kernels_over_their_whole_time(tmp_path: Path) -> None:
    trace = _write(
        tmp_path / "run",
        [
            {
                "kernels": _kernels(
                    ("cuda:0", 7, "gemm", 5_000, 5_030), ("cuda:0", 7, "copy", 5_050, 5_100)
                )
            }
        ],
    )
    opened = open_timeline(trace, None, None, columns=10)
    assert opened.first.window == Window(0, 100, 10)
    view = view_timeline(opened.timeline, opened.first)
    assert _shown(view.rows[0]) == "ggg..ccccc"


def test_an_empty_run_can_be_looked_at(tmp_path: Path) -> None:
    opened = open_timeline(_write(tmp_path / "run", []), None, None, columns=80)
    assert view_timeline(opened.timeline, opened.first).rows == ()


def test_a_damaged_table_is_told_of_and_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2, steps=70, kernels_per_step=1000)
    path = run / "r00001" / "kernels.arrows"
    path.write_bytes(path.read_bytes()[:-5_000])
    timeline = Timeline(Trace.open(run))
    view = view_timeline(
        timeline, Request(Window(*timeline.bounds, 80), timeline.ranks, Group.DEVICES)
    )
    assert len(view.rows) == 2
    assert any(problem.startswith("rank 1, kernels: ") for problem in timeline.problems)


def test_names_from_strangers_are_made_safe(tmp_path: Path) -> None:
    kernels = {**_kernels((HOSTILE, 7, HOSTILE, 1_000, 1_030)), "name": [HOSTILE]}
    spans = {
        **_spans(("forward", 0, HOSTILE, 1_000, 1_040), ("forward", 1, HOSTILE, 1_000, 1_040)),
        "name": [HOSTILE] * 2,
    }
    timeline = Timeline(
        _write(
            tmp_path / "run", [{"steps": _steps(1_000, 1_100), "kernels": kernels, "spans": spans}]
        )
    )
    view = view_timeline(timeline, Request(WHOLE, timeline.ranks, expanded=0))
    texts = [
        text
        for row in view.rows
        for text in (row.label, *row.kind_names, *(label.text for label in row.labels))
    ]
    assert any("x1b[31mred" in text for text in texts)
    assert not any("\x1b" in text or "\u202e" in text for text in texts)


def _lanes(run: Path) -> tuple[list[Lane], list[Path]]:
    rank = Trace.open(run).ranks[0]
    return lanes_of(Group.STREAMS, rank.select("kernels", COLUMNS["kernels"])[0]), [
        rank.path("kernels"),
        rank.path("strings"),
    ]


@pytest.fixture
def kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LaneCache, list[Lane], list[Path], Path]:
    """A cache with the lanes of one small run in it, and its one file."""
    monkeypatch.setattr(timeline_cache, "WORTH_KEEPING", 1)
    lanes, sources = _lanes(synthetic_trace(tmp_path / "run", steps=5, kernels_per_step=20))
    cache = LaneCache(tmp_path / "cache")
    cache.save(Group.STREAMS, sources, lanes)
    return cache, lanes, sources, next((tmp_path / "cache").iterdir())


def test_lanes_come_back_from_disk_as_they_were(
    kept: tuple[LaneCache, list[Lane], list[Path], Path],
) -> None:
    cache, lanes, sources, _ = kept
    found = cache.load(Group.STREAMS, sources)
    assert found is not None
    for again, lane in zip(found, lanes, strict=True):
        assert (again.group, again.label, again.level.kinds) == (
            lane.group,
            lane.label,
            lane.level.kinds,
        )
        for one, other in zip(again.level.pieces.columns, lane.level.pieces.columns, strict=True):
            np.testing.assert_array_equal(one, other)
    assert cache.load(Group.DEVICES, sources) is None


def test_a_cache_of_files_that_changed_is_not_used(
    kept: tuple[LaneCache, list[Lane], list[Path], Path],
) -> None:
    cache, _, sources, _ = kept
    sources[0].write_bytes(sources[0].read_bytes() + b"more")
    assert cache.load(Group.STREAMS, sources) is None


@pytest.mark.parametrize("place", [0, 3, 70, -40, -3])
def test_a_damaged_cache_is_not_used(
    kept: tuple[LaneCache, list[Lane], list[Path], Path], place: int
) -> None:
    cache, _, sources, path = kept
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    assert cache.load(Group.STREAMS, sources) is None


@pytest.mark.parametrize("length", [0, 5, 64, 300, -1])
def test_a_cut_cache_is_not_used(
    kept: tuple[LaneCache, list[Lane], list[Path], Path], length: int
) -> None:
    cache, _, sources, path = kept
    path.write_bytes(path.read_bytes()[:length])
    assert cache.load(Group.STREAMS, sources) is None


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_cache, "WORTH_KEEPING", 1)
    run = synthetic_trace(tmp_path / "run", steps=5, kernels_per_step=20)
    (tmp_path / "file").write_text("no folder")
    timeline = Timeline(Trace.open(run), tmp_path / "file")
    assert len(timeline.lanes(0, Group.DEVICES)) == 1


def test_what_leaves_out_short_events_is_mapped_from_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_cache, "WORTH_KEEPING", 1)
    timeline = Timeline(
        Trace.open(synthetic_trace(tmp_path / "run", steps=5, kernels_per_step=20)),
        tmp_path / "cache",
    )
    (whole,) = timeline.lanes(0, Group.DEVICES)
    longest = int((whole.level.pieces.ends - whole.level.pieces.starts).max())
    (found,) = timeline.lanes(0, Group.DEVICES, longest)
    assert found.level.kept is not None
    assert 0 < len(found.level.pieces) < len(whole.level.pieces)
    borders = np.arange(0, int(whole.level.pieces.ends[-1]), longest)
    for one, other in zip(
        found.level.cells(borders), whole.level.at_least(longest).cells(borders), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lanes"]
    timeline.lanes(0, Group.DEVICES, longest - 1)
    assert [
        timeline.ready(0, Group.DEVICES, at_least) for at_least in (0, longest - 1, longest)
    ] == [True, True, False]


def test_the_stream_of_a_device_that_has_one_is_not_read_again(tmp_path: Path) -> None:
    kernels = _kernels(("cuda:0", 7, "gemm", 1_000, 1_030), ("cuda:0", 7, "copy", 1_040, 1_050))
    timeline = Timeline(
        _write(tmp_path / "run", [{"steps": _steps(1_000, 1_100), "kernels": kernels}])
    )
    (alone,) = timeline.lanes(0, Group.STREAMS)
    timeline.forget()
    (device,) = timeline.lanes(0, Group.DEVICES)
    (stream,) = timeline.lanes(0, Group.STREAMS)
    assert stream.level is device.level
    assert (stream.label, len(stream.level.pieces)) == (alone.label, len(alone.level.pieces))


def test_rows_that_were_seen_are_not_worked_out_again(made: Timeline) -> None:
    request = Request(Window(0, 100, 10), made.ranks)
    first = view_timeline(made, request)
    assert view_timeline(made, request, before=first).rows[0] is first.rows[0]
    for other in (
        Request(Window(0, 90, 10), made.ranks),
        Request(Window(0, 100, 10), made.ranks, at_least_ns=20),
    ):
        assert view_timeline(made, other, before=first).rows[0] is not first.rows[0]


def test_the_oldest_entries_make_room(
    kept: tuple[LaneCache, list[Lane], list[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, lanes, sources, path = kept
    monkeypatch.setattr(timeline_cache, "MOST_BYTES", path.stat().st_size * 3 // 2)
    cache.save(Group.DEVICES, sources, lanes)
    assert not path.exists()
    assert cache.load(Group.DEVICES, sources) is not None


def test_counters_of_running_totals_are_rates(tmp_path: Path) -> None:
    samples: dict[str, list[Any]] = {
        "device": ["cuda:0", "cuda:0", None, None, None],
        "source": ["nvml", "nvml", "process", "process", "profkit"],
        "metric": ["busy_percent", "busy_percent", "cpu_seconds", "cpu_seconds", "span_cost_ns"],
        "time_ns": [1_000, 1_050, 1_000, 1_050, 1_000],
        "value": [40.0, 60.0, 1.0, 1.0 + 25e-9, 400.0],
    }
    timeline = Timeline(
        _write(tmp_path / "run", [{"steps": _steps(1_000, 1_100), "samples": samples}])
    )
    view = view_timeline(timeline, Request(Window(0, 100, 2), timeline.ranks, expanded=0))
    found = {counter.metric: counter for counter in view.counters}
    assert found["busy_percent"].means.tolist() == [40.0, 60.0]
    assert found["cpu_cores"].means[1] == pytest.approx(0.5)
    assert len(found) == 2


def test_the_twin_says_the_same_as_the_view(made: Timeline) -> None:
    view = view_timeline(made, Request(WHOLE, made.ranks, expanded=0))
    told = as_json(view)
    assert [row["kind_ns"] for row in told["rows"]] == [
        row.dominant_ns.tolist() for row in view.rows
    ]
    assert told["rows"][0]["kind"][:5] == ["forward", "other", "forward", "forward", None]
    assert told["steps"] == [{"column": 0, "step": 0}]


def test_windows_stay_inside_the_run() -> None:
    bounds = (0, 1_000)
    window = Window(200, 300, 10)
    assert window.moved(-500, bounds) == Window(0, 100, 10)
    assert window.moved(5_000, bounds) == Window(900, 1_000, 10)
    assert window.zoomed(0.5, 200, bounds) == Window(200, 250, 10)
    assert window.zoomed(0.5, 300, bounds) == Window(250, 300, 10)
    assert window.zoomed(100, 250, bounds) == Window(0, 1_000, 10)
    assert window.zoomed(0.001, 250, bounds).length_ns == 10
    assert [window.column_of(at) for at in (199, 200, 209, 210, 299, 300)] == [
        None,
        0,
        0,
        1,
        9,
        None,
    ]
