"""NCCL Inspector and the flight recorder, whose pickle can build nothing."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from profkit.errors import UnreadableError, UsageError
from profkit.hangs.account import FINE, HUNG, read_account
from profkit.importers import flight_recorder, nccl_inspector
from profkit.importers.base import read_head
from profkit.importers.reading.collective_rows import IMPOSSIBLE
from profkit.plugins import IMPORTERS
from profkit.trace import Trace, verify
from profkit.vocab import Integrity
from tests.importers.conftest import Import

NOW_US = 1_750_000_000_000_000


def line(rank: int, sequence: int, duration_us: float, **more: Any) -> dict[str, Any]:
    perf = {
        "coll": "AllReduce",
        "coll_sn": sequence,
        "coll_msg_size_bytes": 65536,
        "coll_exec_time_us": duration_us,
        "coll_algobw_gbs": 1.5,
        **more,
    }
    header = {"id": "0x7f", "rank": rank, "n_ranks": 2, "nnodes": 1}
    return {
        "header": header,
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": NOW_US,
            "hostname": "host-secret",
            "pid": 7,
        },
        "coll_perf": perf,
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_inspectors_lines_are_collectives_of_all_ranks(
    tmp_path: Path, import_files: Import
) -> None:
    paths = [
        write_lines(
            tmp_path / f"host-pid{rank}.log",
            [line(rank, number, 61.974 + number) for number in range(3)],
        )
        for rank in range(2)
    ]
    assert nccl_inspector.IMPORTER.recognises(read_head(paths[0]), paths[0]) > 0.5
    (made,) = import_files(nccl_inspector.IMPORTER, *paths)
    assert verify(made.run).state is Integrity.COMPLETE
    trace = Trace.open(made.run)
    rows = [row for row in trace.collectives.to_pylist() if row["rank"] == 1]
    assert [
        (
            row["sequence"],
            row["op"],
            row["bytes"],
            row["group_size"],
            row["end_ns"] - row["start_ns"],
        )
        for row in rows
    ] == [(number, "all_reduce", 65536, 2, 61_974 + number * 1000) for number in range(3)]
    assert rows[-1]["end_ns"] == NOW_US * 1000
    assert rows[0]["end_ns"] == rows[1]["start_ns"]
    assert all(
        b"host-secret" not in file.read_bytes() for file in made.run.rglob("*") if file.is_file()
    )


@pytest.mark.parametrize(
    ("coll", "parts"), [("AllGather", 4), ("ReduceScatter", 4), ("AllReduce", 1), ("Broadcast", 1)]
)
def test_inspectors_sizes_of_parts_are_multiplied(
    tmp_path: Path, import_files: Import, coll: str, parts: int
) -> None:
    """Inspector computes the bandwidth of these with its size times the number of ranks."""
    made = line(0, 0, 5.0, coll=coll)
    made["header"]["n_ranks"] = 4
    (run,) = import_files(nccl_inspector.IMPORTER, write_lines(tmp_path / "a.log", [made]))
    assert Trace.open(run.run).collectives["bytes"].to_pylist() == [parts * 65536]


def of_group(made: dict[str, Any], name: str, rank: int, ranks: int) -> dict[str, Any]:
    """Return a line of Inspector, by the rank of its process in one communicator."""
    return {**made, "header": {"id": name, "rank": rank, "n_ranks": ranks, "nnodes": 1}}


def test_a_process_has_its_rank_in_the_largest_communicator(
    tmp_path: Path, import_files: Import
) -> None:
    """A line has the rank in its own communicator, and a process has several of them."""
    paths = []
    for rank in range(2):
        lines = [
            of_group(line(0, 0, 5.0), "world", rank, 2),
            of_group(line(0, 0, 5.0), f"alone{rank}", 0, 1),
        ]
        paths.append(write_lines(tmp_path / f"host-pid{rank}.log", lines))
    (made,) = import_files(nccl_inspector.IMPORTER, *paths)
    rows = Trace.open(made.run).collectives.to_pylist()
    assert sorted((row["rank"], row["communicator"]) for row in rows) == [
        (0, "alone0"), (0, "world"), (1, "alone1"), (1, "world"),
    ]  # fmt: skip
    assert not any("processes" in flag for flag in made.flags)


def test_processes_without_a_common_communicator_are_numbered(
    tmp_path: Path, import_files: Import
) -> None:
    paths = []
    for place, (group, rank) in enumerate((("a", 0), ("a", 1), ("b", 0), ("b", 1))):
        lines = [of_group(line(0, 0, 5.0), group, rank, 2)]
        paths.append(write_lines(tmp_path / f"host-pid{place}.log", lines))
    (made,) = import_files(nccl_inspector.IMPORTER, *paths)
    rows = Trace.open(made.run).collectives.to_pylist()
    assert [(row["rank"], row["communicator"]) for row in rows] == [
        (0, "a"), (1, "a"), (2, "b"), (3, "b"),
    ]  # fmt: skip
    assert any("no communicator has all 4 processes" in flag for flag in made.flags)


def test_a_file_of_several_processes_is_divided(tmp_path: Path, import_files: Import) -> None:
    both = [line(0, 0, 5.0), line(1, 0, 5.0)]
    for pid, made in enumerate(both):
        made["metadata"]["pid"] = pid
    (run,) = import_files(nccl_inspector.IMPORTER, write_lines(tmp_path / "a.log", both))
    assert Trace.open(run.run).collectives["rank"].to_pylist() == [0, 1]
    for made in both:
        made["metadata"]["pid"] = 7
    (run,) = import_files(nccl_inspector.IMPORTER, write_lines(tmp_path / "b.log", both))
    assert Trace.open(run.run).collectives["rank"].to_pylist() == [0, 1]
    assert any("several ranks of one communicator" in flag for flag in run.flags)


def test_lines_that_are_torn_are_counted(tmp_path: Path, import_files: Import) -> None:
    path = write_lines(tmp_path / "a.log", [line(0, 0, 5.0), line(0, 1, 6.0)])
    path.write_text(path.read_text() + '{"header": {"rank"\n[1]\n{"coll_perf": 3}\n')
    (made,) = import_files(nccl_inspector.IMPORTER, path)
    assert made.dropped == {nccl_inspector.BROKEN: 3}
    assert made.rows == {"collectives": 2}


def test_times_that_no_clock_shows_are_counted(tmp_path: Path, import_files: Import) -> None:
    late = line(0, 1, 5.0)
    late["metadata"]["dump_timestamp_us"] = 2**61
    (made,) = import_files(
        nccl_inspector.IMPORTER, write_lines(tmp_path / "a.log", [line(0, 0, 5.0), late])
    )
    assert made.dropped == {IMPOSSIBLE: 1}


def entry(number: int, **more: Any) -> dict[str, Any]:
    made = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + number * 1000,
        "input_sizes": [[256, 4]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 10**18 + number * 1000 + 100,
        "time_discovered_completed_ns": 10**18 + number * 1000 + 700,
    }
    return {**made, **more}


def dump(count: int) -> dict[str, Any]:
    pending = entry(count, time_discovered_completed_ns=None, state="started")
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [*map(entry, range(count)), pending],
    }


@pytest.mark.parametrize("as_pickle", [False, True])
def test_a_dump_in_either_form(tmp_path: Path, import_files: Import, as_pickle: bool) -> None:
    paths = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(2)]
    for path in paths:
        path.write_bytes(pickle.dumps(dump(3)) if as_pickle else json.dumps(dump(3)).encode())
        assert flight_recorder.IMPORTER.recognises(read_head(path), path) > 0.5
    (made,) = import_files(flight_recorder.IMPORTER, *paths)
    rows = Trace.open(made.run).collectives.to_pylist()
    assert [(row["rank"], row["sequence"]) for row in rows] == [
        (rank, number) for rank in range(2) for number in range(3)
    ]
    first = rows[0]
    assert (
        first["op"],
        first["bytes"],
        first["dtype"],
        first["group_size"],
        first["start_ns"] - first["ready_ns"],
        first["end_ns"] - first["start_ns"],
    ) == (
        "all_reduce",
        4096,
        "Float",
        2,
        100,
        600,
    )
    assert any("may have hung" in flag for flag in made.flags)


@pytest.mark.parametrize(
    ("inputs", "outputs"), [([[256, 4]], [[2, 256, 4]]), ([[2, 256, 4]], [[256, 4]])]
)
def test_a_dumps_message_is_the_larger_side(
    tmp_path: Path, import_files: Import, inputs: Any, outputs: Any
) -> None:
    made = dump(0)
    sizes = {"input_sizes": inputs, "output_sizes": outputs, "output_dtypes": ["Float"]}
    made["entries"] = [entry(0, **sizes)]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_text(json.dumps(made))
    (run,) = import_files(flight_recorder.IMPORTER, path)
    assert Trace.open(run.run).collectives["bytes"].to_pylist() == [8192]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["fr_rank0_attempt1.json", "fr_rank1_attempt1.json"], [0, 1]),
        (["rank0_20240101.json", "rank3_20240101.json"], [0, 3]),
        (["trace_0", "trace_12"], [0, 12]),
        (["20240101", "20240102"], [0, 1]),
        (["first.json", "second.json"], [0, 1]),
        (["2024-01-07.json", "2024-01-08_10-30-09.json"], [0, 1]),
    ],
)
def test_a_dumps_rank_comes_from_its_name(
    tmp_path: Path, import_files: Import, names: list[str], ranks: list[int]
) -> None:
    for name in names:
        (tmp_path / name).write_text(json.dumps(dump(2)))
    (made,) = import_files(flight_recorder.IMPORTER, *map(tmp_path.joinpath, names))
    assert [rank.rank for rank in Trace.open(made.run).ranks] == ranks
    in_order = any("in the order of the files" in flag for flag in made.flags)
    assert in_order == ("rank" not in names[0] and "trace" not in names[0])


@pytest.mark.parametrize("names", [["a/dump_1.json", "b/dump_1.json"], ["dump_1", "other.json"]])
def test_two_dumps_of_one_rank_are_refused(
    tmp_path: Path, import_files: Import, names: list[str]
) -> None:
    """The second file of the second case has no rank in its name, and its place is 1."""
    paths = list(map(tmp_path.joinpath, names))
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dump(2)))
    with pytest.raises(UsageError, match="both of rank 1; rename them"):
        import_files(flight_recorder.IMPORTER, *paths)


def test_a_measured_duration_ends_when_the_end_was_seen(
    tmp_path: Path, import_files: Import
) -> None:
    seen = 10**18 + 5_000_000
    times = {"time_discovered_started_ns": seen, "time_discovered_completed_ns": seen}
    made = dump(0)
    made["entries"] = [entry(0, duration_ms=2.0, **times), entry(1, duration_ms=0.25, **times)]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_text(json.dumps(made))
    (run,) = import_files(flight_recorder.IMPORTER, path)
    rows = Trace.open(run.run).collectives.to_pylist()
    assert sorted(row["end_ns"] - row["start_ns"] for row in rows) == [250_000, 2_000_000]
    assert {row["end_ns"] for row in rows} == {seen}
    assert not any("watchdog" in flag for flag in run.flags)


@pytest.mark.parametrize("duration", [None, "soon", -1, True, float("inf"), 1e30])
def test_without_a_measured_duration_a_flag_says_so(
    tmp_path: Path, import_files: Import, duration: Any
) -> None:
    made = dump(0)
    made["entries"] = [entry(0, duration_ms=duration), entry(1)]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_text(json.dumps(made))
    (run,) = import_files(flight_recorder.IMPORTER, path)
    (flag,) = (flag for flag in run.flags if "watchdog" in flag)
    assert flag.startswith("collectives without a measured duration: 2;")


def dump_of_gloo(last: int, *, retired: bool) -> dict[str, Any]:
    """Return a dump as torch 2.15 writes it for gloo, which never says when a collective ended."""
    times = {"time_discovered_started_ns": 0, "time_discovered_completed_ns": 0}
    common = {**times, "profiling_name": "gloo:all_reduce", "state": "scheduled", "pg_id": 0}
    entries = [entry(number, **common, retired=True) for number in range(1, last)]
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_completed_collective": str(last - 1)}},
        "entries": [*entries, entry(last, **common, retired=retired)],
    }


@pytest.mark.parametrize("as_pickle", [False, True])
def test_dumps_of_gloo_say_who_has_not_entered(
    tmp_path: Path, import_files: Import, as_pickle: bool
) -> None:
    paths = [tmp_path / f"gloo_rank_{rank}" for rank in range(2)]
    for path, made in zip(
        paths, [dump_of_gloo(7, retired=False), dump_of_gloo(6, retired=True)], strict=True
    ):
        path.write_bytes(pickle.dumps(made) if as_pickle else json.dumps(made).encode())
    (made_run,) = import_files(flight_recorder.IMPORTER, *paths)
    assert made_run.dropped == {flight_recorder.NO_END: 12, flight_recorder.PENDING: 1}
    account = read_account(made_run.run)
    assert account.state == HUNG
    assert account.verdict is not None
    assert (account.verdict["class"], account.verdict["ranks"]) == ("never entered", [1])
    assert "rank 0 waits in all_reduce #7; rank 1 has not entered it" in account.verdict["text"]
    assert Trace.open(made_run.run).manifest.config["backend"] == "gloo"


def test_dumps_whose_collectives_have_all_ended_show_no_hang(
    tmp_path: Path, import_files: Import
) -> None:
    path = tmp_path / "gloo_rank_0"
    path.write_text(json.dumps(dump_of_gloo(3, retired=True)))
    (made_run,) = import_files(flight_recorder.IMPORTER, path)
    assert read_account(made_run.run).state == FINE


def test_a_batch_of_messages_that_has_ended_shows_no_hang(
    tmp_path: Path, import_files: Import
) -> None:
    """Only the entry that closes a batch says that it has ended."""
    none = {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    for rank, name in enumerate(("send 0->1", "recv 1<-0")):
        made = dump(0)
        batch = {"is_p2p": True, "p2p_seq_id": 1}
        part = entry(1, profiling_name=f"nccl:{name}", state="scheduled", **batch, **none)
        made["entries"] = [entry(0), part, entry(2, profiling_name="nccl:coalesced", **batch)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(made))
    (made_run,) = import_files(flight_recorder.IMPORTER, *sorted(tmp_path.glob("nccl_trace_*")))
    assert made_run.dropped == {flight_recorder.NO_END: 2}
    assert read_account(made_run.run).state == FINE


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/profkit-was-here",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_builds_nothing(tmp_path: Path, import_files: Import, protocol: int) -> None:
    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps({"entries": [Hostile()]}, protocol))
    with pytest.raises(UnreadableError, match="it asks for"):
        import_files(flight_recorder.IMPORTER, path)
    assert not Path("/tmp/profkit-was-here").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04",
        b"{",
        b"[]",
        b'{"entries": 3}',
        b"\x80\x04\x8a\xff",
        b"\x80\x04X\xff\xff\xff\x7f",
        b'{"entries": [{}, [], 3]}',
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, import_files: Import, content: bytes) -> None:
    (tmp_path / "dump_0").write_bytes(content)
    with pytest.raises(UnreadableError):
        import_files(flight_recorder.IMPORTER, tmp_path / "dump_0")


def test_every_format_is_listed() -> None:
    assert {"kineto", "nsys", "nccl_inspector", "flight_recorder"} <= set(IMPORTERS.names())
