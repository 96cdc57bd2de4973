"""Nsight Systems exports: several schemas, several devices, nothing that can act."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.kernels.categories import COMMUNICATION, categorise
from profkit.analysis.kernels.device_time import device_times
from profkit.errors import UnreadableError
from profkit.frame.exchange import match_all
from profkit.importers.kineto.collectives import COMMUNICATOR, MESSAGE_BYTES, ONE_PART, message_of
from profkit.importers.nsys import IMPORTER
from profkit.importers.nsys.events import _small, read_payload
from profkit.importers.reading.numbers import MISSING, MISSING_SMALL
from profkit.instrument.ranges import Ranges
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.trace import Trace, verify
from profkit.vocab import Integrity, Phase
from tests.importers.conftest import NSYS, Import, needs_data
from tests.importers.test_kineto import as_dict, brute_force

SECRET = "s3cr3t-canary"
STRINGS = [
    "volta_sgemm_64x64_nt",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "cudaLaunchKernel",
    "iteration 3",
    "aten::mm, seq = 5, op_id = 9",
    "forward",
    "ncclAllReduce",
]
PAYLOAD = json.dumps({COMMUNICATOR: "77", MESSAGE_BYTES: 4096})


def export(
    path: Path,
    *,
    suffix: str = "",
    more: str = "",
    ranges_text: bool = False,
    extra: str = "",
    communicators: Sequence[str] = ("77", "77"),
) -> Path:
    """Write a small export: processes with a device, launches and ranges each."""
    base = sqlite3.connect(path)
    kernels = (
        f"start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName{more}"
    )
    base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS))
    base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL{suffix} ({kernels})")
    base.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
    )
    base.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId, "
        "globalPid, bytes, copyKind)"
    )
    base.execute(
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, textId, domainId, "
        "jsonText)"
    )
    base.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)")
    base.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs)")
    base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1779782330176752435)")
    base.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('ENVIRONMENT', ?)", (SECRET,))
    for process, communicator in enumerate(communicators, 1):
        given = json.dumps({COMMUNICATOR: communicator, MESSAGE_BYTES: 4096})
        owner, thread = process << 24, (process << 24) + 5
        base.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL{suffix} ({kernels.removesuffix(more)}) VALUES "
            f"(150, 250, ?, 7, 11, ?, 0, 0)",
            (process - 1, owner),
        )
        base.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL{suffix} ({kernels.removesuffix(more)}) VALUES "
            f"(200, 400, ?, 9, 12, ?, 1, 1)",
            (process - 1, owner),
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (120, 130, ?, 11, 2), (170, 180, ?, 12,"
            " 2)",
            (thread, thread),
        )
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (410, 420, ?, 7, 13, ?, 64, 1)",
            (process - 1, owner),
        )
        for start, end, string, payload in (
            (100, 500, 3, None),
            (110, 160, 4, None),
            (105, 300, 5, None),
            (165, 190, 6, given),
        ):
            text = (STRINGS[string], None) if ranges_text else (None, string)
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?, 0, ?)",
                (start, end, thread, *text, payload),
            )
    if extra:
        base.executescript(extra)
    base.commit()
    base.close()
    return path


@pytest.mark.parametrize("suffix", ["", "_V2", "_V3"])
@pytest.mark.parametrize("ranges_text", [False, True])
def test_every_schema_gives_the_same_run(
    tmp_path: Path, import_files: Import, suffix: str, ranges_text: bool
) -> None:
    path = export(
        tmp_path / "job.sqlite",
        suffix=suffix,
        more=", registersPerThread, graphNodeId",
        ranges_text=ranges_text,
    )
    (made,) = import_files(IMPORTER, path)
    assert verify(made.run).state is Integrity.COMPLETE
    trace = Trace.open(made.run)
    assert [rank.manifest.device for rank in trace.ranks] == ["cuda:0", "cuda:1"]
    assert trace.ranks[0].manifest.anchor.realtime_ns == 1779782330176752435
    kernels = [
        (row["start_ns"], row["category"], row["op"], row["launch_ns"], row["phase"], row["bytes"])
        for row in trace.kernels.to_pylist()[:3]
    ]
    assert kernels == [
        (150, "gemm", "aten::mm", 120, "forward", None),
        (200, "communication", None, 170, "forward", None),
        (410, "copy to device", None, None, None, 64),
    ]
    assert [(row["step"], row["start_ns"], row["end_ns"]) for row in trace.steps.to_pylist()] == [
        (3, 100, 500)
    ] * 2
    assert [(row["name"], row["phase"], row["depth"]) for row in trace.spans.to_pylist()[:2]] == [
        ("forward", "forward", 0),
        ("ncclAllReduce", "allreduce", 1),
    ]
    collective = trace.collectives.to_pylist()[0]
    assert (
        collective["op"],
        collective["bytes"],
        collective["communicator"],
        collective["group_size"],
    ) == ("all_reduce", 4096, "77", 2)


def test_environments_are_never_read(tmp_path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite"), keep_private=True)
    assert all(
        SECRET.encode() not in file.read_bytes() for file in made.run.rglob("*") if file.is_file()
    )


@pytest.mark.parametrize(
    "extra",
    [
        "CREATE VIEW hostile AS SELECT load_extension('x')",
        "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
    ],
)
def test_what_could_act_is_refused(tmp_path: Path, import_files: Import, extra: str) -> None:
    with pytest.raises(UnreadableError, match="it is not read"):
        import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))


def test_a_missing_column_is_named(tmp_path: Path, import_files: Import) -> None:
    path = export(
        tmp_path / "job.sqlite", extra="ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId"
    )
    with pytest.raises(UnreadableError, match="KERNEL has no column streamId"):
        import_files(IMPORTER, path)
    with pytest.raises(UnreadableError, match="no table StringIds"):
        import_files(IMPORTER, export(tmp_path / "none.sqlite", extra="DROP TABLE StringIds"))


def test_values_of_other_types_cost_their_row_and_are_counted(
    tmp_path: Path, import_files: Import
) -> None:
    extra = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 'soon' WHERE start = 150; "
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = -5 WHERE start = 200 AND deviceId = 0"
    )
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    assert made.rows["kernels"] == 3
    assert "rank 0: dropped 1 events that end before they start" in made.flags
    assert "rank 1: dropped 1 events without a time" in made.flags


def test_the_payload_of_a_call_in_bytes() -> None:
    assert read_payload("ncclAllReduce", "", struct.pack("<QQii", 255, 4096, 0, 0)) == {
        COMMUNICATOR: "ff",
        MESSAGE_BYTES: "4096",
    }
    assert read_payload("ncclAllGather", "", struct.pack("<QQ", 255, 64)) == {
        COMMUNICATOR: "ff",
        MESSAGE_BYTES: "64",
        ONE_PART: "ncclAllGather",
    }
    assert (
        read_payload("ncclAllReduce", "{nonsense", None)
        == read_payload("mine", PAYLOAD, None)
        == {}
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_file_is_refused_or_read_and_never_hangs(
    tmp_path: Path, import_files: Import, seed: int
) -> None:
    chance = random.Random(seed)
    content = bytearray(export(tmp_path / "job.sqlite").read_bytes())
    for _ in range(chance.randrange(1, 30)):
        content[chance.randrange(16, len(content))] = chance.randrange(256)
    if chance.random() < 0.3:
        del content[chance.randrange(100, len(content)) :]
    (tmp_path / "bad.sqlite").write_bytes(content)
    begun = time.thread_time()
    try:
        made = import_files(IMPORTER, tmp_path / "bad.sqlite")
    except UnreadableError:
        made = []
    assert time.thread_time() - begun < 5
    assert all(verify(each.run).state is Integrity.COMPLETE for each in made)


@needs_data
@pytest.mark.parametrize("path", NSYS, ids=lambda path: path.stem)
def test_device_times_equal_a_brute_force(path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, path)
    found = {times.device: as_dict(times) for times in device_times(Trace.open(made.run).kernels)}
    base = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    names = dict(base.execute("SELECT id, value FROM StringIds"))
    for device in (0, 1):
        rows = base.execute(
            "SELECT demangledName, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = ?",
            (device,),
        ).fetchall()
        work = [
            ("communication" if categorise(names[name]) == COMMUNICATION else "compute", start, end)
            for name, start, end in rows
        ]
        for table in ("MEMCPY", "MEMSET"):
            work += [
                ("moves", *row)
                for row in base.execute(
                    f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId = ?",
                    (device,),
                )
            ]
        assert found[f"cuda:{device}"] == brute_force(work)
    base.close()


def test_a_missing_number_stays_missing() -> None:
    """The smallest 64-bit integer marks a missing number; its absolute value is negative."""
    found = _small(np.array([MISSING, -1, 0, 255, 2**31], dtype=np.int64))
    assert found.tolist() == [MISSING_SMALL, -1, 0, 255, MISSING_SMALL]


GRAPHS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, contextId, streamId, "
    "correlationId, globalPid, graphId); "
)


def launch_graph(process: int, start: int, end: int) -> str:
    """Return the statement that adds the launch of a graph, on the process' own device."""
    return (
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({start}, {end}, {process - 1}, 1, 7, "
        f"12, {process << 24}, 7); "
    )


def test_graphs_that_are_traced_as_a_whole_are_work(tmp_path: Path, import_files: Import) -> None:
    extra = GRAPHS + launch_graph(1, 500, 1_500)
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    trace = Trace.open(made.run)
    (graph,) = (row for row in trace.kernels.to_pylist() if row["name"] == "CUDA graph 7")
    assert (graph["category"], graph["tensor_core"], graph["launch_ns"]) == (
        "CUDA graph",
        None,
        170,
    )
    times = {time.device: time.idle_ns for time in device_times(trace.kernels)}
    assert times == {"cuda:0": 90, "cuda:1": 10}
    (flag,) = (flag for flag in made.flags if "--cuda-graph-trace=node" in flag)
    assert flag.startswith("CUDA graphs whose kernels are not in the file: 1;")


@pytest.mark.parametrize("without", ["DELETE FROM", "DROP TABLE"])
def test_a_job_of_graphs_alone_is_read(tmp_path: Path, import_files: Import, without: str) -> None:
    extra = f"{GRAPHS}{launch_graph(1, 500, 600)}{without} CUPTI_ACTIVITY_KIND_KERNEL;"
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    assert made.ranks == 1
    assert any("CUDA graphs whose kernels" in flag for flag in made.flags)


def test_an_export_without_device_work_names_both_options(
    tmp_path: Path, import_files: Import
) -> None:
    extra = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"
    with pytest.raises(UnreadableError, match="--trace=cuda,nvtx --cuda-graph-trace=node"):
        import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))


def test_a_communicator_has_the_ranks_that_show_it(tmp_path: Path, import_files: Import) -> None:
    path = export(tmp_path / "job.sqlite", communicators="aabb")
    (made,) = import_files(IMPORTER, path)
    rows = Trace.open(made.run).collectives
    assert rows["group_size"].to_pylist() == [2] * 4
    found = match_all(rows)
    assert found.count == found.matched_count == 2
    assert any("2 communicators have as many ranks as show them" in flag for flag in made.flags)


def test_the_size_of_a_communicator_that_one_rank_shows_is_not_known(
    tmp_path: Path, import_files: Import
) -> None:
    path = export(tmp_path / "job.sqlite", communicators="a")
    (made,) = import_files(IMPORTER, path)
    rows = Trace.open(made.run).collectives
    assert rows["group_size"].to_pylist() == [0]
    assert not match_all(rows).matched_count
    assert any("1 communicator is shown by one rank alone" in flag for flag in made.flags)


@pytest.mark.parametrize(
    ("kernel", "call", "op"),
    [
        ("ncclDevKernel_AllGather_RING_LL", "ncclAllGather", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "ncclReduceScatter", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclAllReduce", "all_reduce"),
    ],
)
def test_a_size_is_that_of_all_ranks_parts(
    tmp_path: Path, import_files: Import, kernel: str, call: str, op: str
) -> None:
    """NCCL states one rank's part of some collectives; PyTorch's profiler states both sides."""
    extra = (
        f"UPDATE StringIds SET value = '{kernel}' WHERE id = 1; "
        f"UPDATE StringIds SET value = '{call}' WHERE id = 6; "
    )
    path = export(tmp_path / "job.sqlite", extra=extra, communicators="aa")
    (made,) = import_files(IMPORTER, path)
    rows = Trace.open(made.run).collectives
    part = 4096 if op == "all_reduce" else 2 * 4096
    assert rows["op"].to_pylist() == [op] * 2
    assert rows["bytes"].to_pylist() == [part] * 2
    args = {"Collective name": op, "dtype": "Byte", "Group size": 2}
    sides = {"all_gather": (4096, 8192), "reduce_scatter": (8192, 4096)}.get(op, (4096, 4096))
    args |= {"In msg nelems": sides[0], "Out msg nelems": sides[1]}
    assert message_of(args, op).bytes == part


def test_a_part_of_an_unknown_number_of_parts_has_no_size(
    tmp_path: Path, import_files: Import
) -> None:
    extra = (
        "UPDATE StringIds SET value = 'ncclDevKernel_AllGather_RING_LL' WHERE id = 1; "
        "UPDATE StringIds SET value = 'ncclAllGather' WHERE id = 6; "
    )
    path = export(tmp_path / "job.sqlite", extra=extra, communicators="a")
    (made,) = import_files(IMPORTER, path)
    assert Trace.open(made.run).collectives["bytes"].to_pylist() == [0]
    assert any(flag.startswith("collectives of unknown size") for flag in made.flags)


def test_an_exchange_of_messages_counts_what_it_sends(tmp_path: Path, import_files: Import) -> None:
    """PyTorch's all-to-all is a group of sends and receives, which carry the same bytes."""
    names = ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]
    extra = (
        "UPDATE StringIds SET value = 'ncclDevKernel_SendRecv' WHERE id = 1; "
        "UPDATE StringIds SET value = 'nccl:all_to_all, seq = 1' WHERE id = 6; "
        "UPDATE NVTX_EVENTS SET start = 161, end = 199, jsonText = NULL WHERE textId = 6; "
    )
    given = json.dumps({COMMUNICATOR: "a", MESSAGE_BYTES: 4096})
    for place, name in enumerate([*names[:3], *names[1:]]):
        payload = f"'{given}'" if "Group" not in name else "NULL"
        times = f"{150 + 2 * place}, {151 + 2 * place}"
        if name == "ncclGroupEnd":
            times = "165, 190"
        thread = (1 << 24) + 5
        extra += (
            "INSERT INTO NVTX_EVENTS VALUES "
            f"({times}, 59, {thread}, '{name}', NULL, 0, {payload}); "
        )
    path = export(tmp_path / "job.sqlite", extra=extra, communicators="a")
    (made,) = import_files(IMPORTER, path)
    (row,) = Trace.open(made.run).collectives.to_pylist()
    assert (row["op"], row["bytes"]) == ("all_to_all", 8192)


def test_a_kernel_on_another_process_device_makes_no_rank(
    tmp_path: Path, import_files: Import
) -> None:
    """A tensor that is created before the process chooses its device is on the first one."""
    extra = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL "
        f"VALUES (100, 110, 0, 7, 12, {2 << 24}, 0, 0); "
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY "
        f"VALUES (90, 95, 1, 7, 13, {1 << 24}, 64, 1)"
    )
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    assert made.ranks == 2
    trace = Trace.open(made.run)
    assert [rank.manifest.device for rank in trace.ranks] == ["cuda:0", "cuda:1"]
    (flag,) = (flag for flag in made.flags if "own device" in flag)
    assert "are in no figure: 1 of rank 0 on cuda:1, 1 of rank 1 on cuda:0" in flag


def test_copies_say_between_which_memories_they_are(tmp_path: Path, import_files: Import) -> None:
    extra = "".join(
        f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN {name} DEFAULT {value}; "
        for name, value in (("srcKind", 0), ("dstKind", 2))
    )
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    names = set(Trace.open(made.run).kernels["name"].cast("string").to_pylist())
    assert "Memcpy HtoD (Pageable -> Device)" in names


def test_a_process_may_train_on_several_devices(tmp_path: Path, import_files: Import) -> None:
    extra = f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = {1 << 24}"
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    assert made.ranks == 2
    assert not any("own device" in flag for flag in made.flags)


def test_a_few_kernels_on_a_device_that_nobody_owns_make_no_rank(
    tmp_path: Path, import_files: Import
) -> None:
    many = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 1000 + value * 10, 1005 + value * 10, 0, "
    extra = (
        f"{many} 7, 12, {1 << 24}, 0, 0 FROM (WITH RECURSIVE n(value) AS "
        "(SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 300) SELECT value FROM n); "
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = {1 << 24}"
    )
    (made,) = import_files(IMPORTER, export(tmp_path / "job.sqlite", extra=extra))
    assert made.ranks == 1
    assert any("2 of rank 0 on cuda:1" in flag for flag in made.flags)


def test_the_ranges_of_a_recorded_job_come_back(tmp_path: Path, import_files: Import) -> None:
    """Phases are ranges that nest, a step is one that need not."""
    clock = iter(range(1_000, 10**9, 10))
    rows: list[tuple[int, int, int, str]] = []
    phases: list[tuple[int, str]] = []
    steps: list[tuple[int, int]] = []

    def step(number: int | None) -> None:
        now = next(clock)
        if steps:
            start, last = steps.pop()
            rows.append((start, now, 60, f"step {last}"))
        if number is not None:
            steps.append((now, number))

    def pop() -> None:
        start, name = phases.pop()
        rows.append((start, next(clock), 59, name))

    ranges = Ranges(lambda name: phases.append((next(clock), name)), pop, step)
    recorder = Recorder(MemorySink(), ranges=ranges, clock=lambda: next(clock))
    recorder.begin()
    for _ in range(4):
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            with recorder.phase(phase):
                pass
        recorder.end_step(next(clock), 8)
    recorder.stop()
    thread = (1 << 24) + 5
    values = [f"({start}, {end}, {kind}, {thread}, '{name}', NULL, 1, NULL)"
              for start, end, kind, name in rows]  # fmt: skip
    work = f"(1500, 1510, 0, 7, 99, {1 << 24}, 0, 0)"
    extra = (
        f"DELETE FROM NVTX_EVENTS; INSERT INTO NVTX_EVENTS VALUES {', '.join(values)};"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {work};"
    )
    (made,) = import_files(
        IMPORTER, export(tmp_path / "job.sqlite", extra=extra, communicators=("77",))
    )
    trace = Trace.open(made.run)
    assert trace.steps["step"].to_pylist() == [0, 1, 2, 3]
    spans = [row for row in trace.spans.to_pylist() if row["step"] is not None]
    assert [row["phase"] for row in spans[:4]] == ["data", "forward", "backward", "optimizer"]
