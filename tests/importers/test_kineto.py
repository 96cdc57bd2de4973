"""Kineto and Paddle traces as runs, compared with planted values and a brute force."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.analysis.kernels.categories import (
    COMMUNICATION,
    MATRIX_WORK,
    UNCATEGORISED,
    categorise,
)
from profkit.analysis.kernels.device_time import DeviceTime, device_times
from profkit.analysis.overview import build_overview
from profkit.errors import UnreadableError
from profkit.importers import nsys
from profkit.importers.kineto import IMPORTER
from profkit.importers.kineto.collectives import operation_of
from profkit.importers.kineto.steps import AT_DEVICE_PACE, FROM_LOADER, NOT_MARKED
from profkit.importers.reading.plan import plan_import
from profkit.importers.reading.rank_files import (
    DUPLICATES,
    NO_DEVICE_WORK,
    NO_SAMPLES,
    UNKNOWN_EVENTS,
)
from profkit.trace import Trace, verify
from profkit.vocab import Integrity
from tests.documents import report_json, report_text
from tests.importers.conftest import (
    BASE_US,
    KINETO,
    NSYS,
    Event,
    Import,
    host,
    kernel,
    needs_data,
    two_steps,
    us,
    write_trace,
)

BASE_NS = BASE_US * 1000


def test_two_steps_come_in_whole(tmp_path: Path, import_files: Import) -> None:
    device = {
        "id": 0,
        "name": "Tesla V100",
        "totalGlobalMem": 34079899648,
        "computeMajor": 7,
        "computeMinor": 0,
        "numSms": 80,
    }
    path = write_trace(
        tmp_path / "job.pt.trace.json",
        two_steps(),
        deviceProperties=[device],
        distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"},
    )
    (made,) = import_files(IMPORTER, path, samples_per_step=32)
    assert (
        verify(made.run).state is Integrity.COMPLETE
    )  # all that the file holds; report tells of the seven ranks that it does not
    trace = Trace.open(made.run)
    assert [rank.rank for rank in trace.ranks] == [3]
    assert trace.manifest.world_size == 8
    assert trace.manifest.environment["devices"][0] == {
        "name": "Tesla V100",
        "memory_bytes": 34079899648,
        "multiprocessors": 80,
        "compute_capability": "7.0",
    }
    steps = trace.steps.to_pylist()
    assert [
        (step["step"], step["start_ns"] - BASE_NS, step["end_ns"] - BASE_NS, step["sample_count"])
        for step in steps
    ] == [
        (4, 0, 1_000_000, 32),
        (5, 1_000_000, 2_000_000, 32),
    ]
    spans = [
        (span["phase"], span["start_ns"] - BASE_NS, span["end_ns"] - BASE_NS)
        for span in trace.spans.to_pylist()
        if span["step"] == 4
    ]
    assert spans == [
        ("data", 10_125, 100_125),
        ("forward", 120_125, 300_125),
        ("backward", 300_125, 500_125),
        ("optimizer", 700_125, 800_125),
        ("allreduce", 400_125, 400_125),
    ]


def test_kernels_know_their_operator_launch_step_and_phase(
    tmp_path: Path, import_files: Import
) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", two_steps()))
    kernels = Trace.open(made.run).kernels.to_pylist()
    shown = [
        (each["category"], each["op"], each["phase"], each["step"], each["tensor_core"])
        for each in kernels[:4]
    ]
    assert shown == [
        ("gemm", "aten::mm", "forward", 4, False),
        ("gemm", "aten::mm", "backward", 4, True),
        ("communication", None, None, 4, False),
        ("optimizer", None, "optimizer", 4, False),
    ]
    first = kernels[0]
    assert (
        first["start_ns"] - BASE_NS,
        first["end_ns"] - first["start_ns"],
        first["launch_ns"] - BASE_NS,
    ) == (140_125, 100_500, 130_125)
    assert (
        first["grid"],
        first["block"],
        first["registers"],
        first["shared_bytes"],
        first["correlation"],
    ) == ([2, 1, 1], [128, 1, 1], 32, 48, 1)


def test_collectives_are_sized(tmp_path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", two_steps()))
    collectives = Trace.open(made.run).collectives.to_pylist()
    assert [
        (
            each["communicator"],
            each["sequence"],
            each["op"],
            each["bytes"],
            each["dtype"],
            each["group_size"],
        )
        for each in collectives
    ] == [
        ("0", 0, "all_reduce", 4000, "Float", 2),
        ("0", 1, "all_reduce", 4000, "Float", 2),
    ]


@pytest.mark.parametrize(
    ("ranks", "group_size", "words"),
    [(1, 0, "it is not known how many"), (8, 8, "all 8 ranks of the job are assumed")],
)
def test_a_group_whose_size_is_not_stated_is_flagged(
    tmp_path: Path, import_files: Import, ranks: int, group_size: int, words: str
) -> None:
    """Files of older versions of torch do not say how many ranks a collective has."""
    events = two_steps()
    for event in events:
        event["args"].pop("Group size", None)
    path = write_trace(
        tmp_path / "job.json", events, distributedInfo={"rank": 0, "world_size": ranks}
    )
    (made,) = import_files(IMPORTER, path)
    assert Trace.open(made.run).collectives["group_size"].to_pylist() == [group_size] * 2
    (flag,) = (flag for flag in made.flags if words in flag)
    assert flag.startswith("collectives that do not state their group: 2;")


def test_ranks_come_from_the_content_then_the_name(tmp_path: Path, import_files: Import) -> None:
    told = write_trace(
        tmp_path / "a.json", two_steps(), distributedInfo={"rank": 1, "world_size": 2}
    )
    named = write_trace(tmp_path / "worker0.json.gz", two_steps())
    named.write_bytes(gzip.compress(named.read_bytes()))
    (made,) = import_files(IMPORTER, told, named)
    assert [rank.rank for rank in Trace.open(made.run).ranks] == [0, 1]
    contrary = write_trace(
        tmp_path / "worker7.json", two_steps(), distributedInfo={"rank": 0, "world_size": 2}
    )
    (made,) = import_files(IMPORTER, told, contrary)
    assert [rank.rank for rank in Trace.open(made.run).ranks] == [0, 1]
    again = write_trace(
        tmp_path / "b.json", two_steps(), distributedInfo={"rank": 1, "world_size": 2}
    )
    assert len(import_files(IMPORTER, told, again)) == 2


def test_private_things_are_dropped_unless_asked_for(tmp_path: Path, import_files: Import) -> None:
    secret = "s3cr3t-canary"
    header = {
        "host_name": secret,
        "PT_PROFILER_JOB_NAME": secret,
        "traceName": f"/home/{secret}/x.json",
        "with_stack": 1,
        "user": secret,
    }
    path = write_trace(tmp_path / "job.json", two_steps(), **header)
    (made,) = import_files(IMPORTER, path)
    assert all(
        secret.encode() not in file.read_bytes() for file in made.run.rglob("*") if file.is_file()
    )
    (kept,) = import_files(IMPORTER, path, keep_private=True)
    assert Trace.open(kept.run).ranks[0].manifest.host == secret


def test_old_spellings(tmp_path: Path, import_files: Import) -> None:
    events = [
        {**host("Operator", "aten::mm", "100", "50", tid="1890023232"), "args": {"External id": 5}},
        {
            **host("Runtime", "cudaLaunchKernel", "110", "4", tid="1890023232"),
            "args": {"correlation": 9, "external id": 5},
        },
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "volta_sgemm_64x64_nt",
            "pid": 0,
            "tid": "stream 7",
            "ts": 120,
            "dur": 10,
            "args": {"device": 0, "stream": 7, "correlation": 9, "external id": 5},
        },
        {
            "ph": "X",
            "cat": "Memcpy",
            "name": "Memcpy HtoD (Pageable -> Device)",
            "pid": 0,
            "tid": "stream 7",
            "ts": 140,
            "dur": 2,
            "args": {"device": 0, "stream": "7", "bytes": 64},
        },
        {
            "ph": "f",
            "cat": "async",
            "name": "launch",
            "id": 77,
            "pid": 0,
            "tid": "stream 7",
            "ts": 140,
        },
    ]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "old.json", events))
    kernels = Trace.open(made.run).kernels.to_pylist()
    assert [
        (each["op"], each["stream"], each["category"], each["correlation"]) for each in kernels
    ] == [
        ("aten::mm", 7, "gemm", 9),
        (None, 7, "copy to device", 77),
    ]
    assert NOT_MARKED in made.flags


def test_paddles_own_export(tmp_path: Path, import_files: Import) -> None:
    def event(category: str, name: str, start: str, duration: str) -> Event:
        return {
            "name": f"{name}[{duration} us]",
            "pid": 8,
            "tid": "8(Python)",
            "ts": start,
            "dur": duration,
            "ph": "X",
            "cat": category,
            "args": {"start_time": "0.000 us"},
        }

    events = [
        event("ProfileStep", "ProfileStep#1", "1795257150655465", "832.712"),
        event("Dataloader", "_DataLoaderIterSingleProcess", "1795257150655477", "123.674"),
        event("Forward", "Linear", "1795257150655636", "205.867"),
        event("Backward", "Gradient Backward", "1795257150655915", "128.101"),
        event("Optimization", "Optimization Step", "1795257150656054", "223.693"),
        event("Operator", "matmul dygraph", "1795257150655744", "68.763"),
    ]
    (made,) = import_files(
        IMPORTER,
        write_trace(
            tmp_path / "host_vmpid.paddle_trace.json",
            events,
            displayTimeUnit="ms",
            schemaVersion="1.0.2",
        ),
    )
    trace = Trace.open(made.run)
    assert trace.manifest.framework == "paddle"
    assert trace.spans["phase"].to_pylist() == ["data", "forward", "backward", "optimizer"]
    assert trace.spans["name"].to_pylist()[1] == "Linear"
    assert trace.steps["end_ns"][0].as_py() - trace.steps["start_ns"][0].as_py() == 832_712
    assert trace.kernels["device"].to_pylist() == ["cpu"]


def test_the_kernels_of_paddle_have_no_duration_in_their_names(
    tmp_path: Path, import_files: Import
) -> None:
    events: list[Event] = []
    for number in range(30):
        name = f"volta_sgemm_{64 * (number % 2 + 1)}_nn[0.0{number + 10} ms]"
        kernel = {"ph": "X", "cat": "Kernel", "name": name, "ts": 1000 + 100 * number, "dur": 50}
        events.append({**kernel, "pid": 0, "tid": 7, "args": {"stream": 7, "device": 0}})
    step = {"ph": "X", "cat": "ProfileStep", "name": "ProfileStep#1[3 ms]", "ts": 1000, "dur": 3000}
    events.append({**step, "pid": 0, "tid": 1})
    (made,) = import_files(
        IMPORTER, write_trace(tmp_path / "p.json", events, schemaVersion="1.0.2")
    )
    names = Trace.open(made.run).kernels["name"].to_pylist()
    assert (len(names), set(names)) == (30, {"volta_sgemm_64_nn", "volta_sgemm_128_nn"})


def test_steps_that_are_not_marked_are_taken_from_the_loader(
    tmp_path: Path, import_files: Import
) -> None:
    events = [event for event in two_steps() if not event["name"].startswith("ProfilerStep")]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert FROM_LOADER in made.flags
    starts = Trace.open(made.run).steps["start_ns"].to_pylist()
    assert [start - BASE_NS for start in starts] == [10_125, 1_010_125]


def test_a_throughput_that_nothing_tells_is_not_zero(tmp_path: Path, import_files: Import) -> None:
    events = [
        host("user_annotation", f"ProfilerStep#{step}", us(str(step * 1000)), "1000")
        for step in range(60)
    ]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    view = build_overview(Trace.open(made.run))
    assert report_json(view)["throughput_samples_per_s"]["value"] is None
    assert "nothing says how many samples a step trains on" in report_text(view)
    assert view.step_ns.value == 1_000_000
    assert NO_SAMPLES in view.flags
    (told,) = import_files(IMPORTER, tmp_path / "job.json", samples_per_step=8)
    assert build_overview(Trace.open(told.run)).throughput.value == pytest.approx(8000)


def test_names_that_older_versions_did_not_escape(tmp_path: Path, import_files: Import) -> None:
    path = write_trace(tmp_path / "job.json", two_steps())
    path.write_text(path.read_text().replace("aten::mm", 'say "hi" to C:\\work'))
    (made,) = import_files(IMPORTER, path)
    assert 'say "hi" to C:\\work' in Trace.open(made.run).kernels["op"].to_pylist()


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_file_gives_what_came_before_the_tear_and_says_so(
    tmp_path: Path, import_files: Import, cut: float, packed: bool
) -> None:
    path = write_trace(tmp_path / "job.json", two_steps() * 50)
    whole = gzip.compress(path.read_bytes()) if packed else path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut)])
    (made,) = import_files(IMPORTER, path)
    assert any("could not be read" in flag or "ends early" in flag for flag in made.flags)
    assert verify(made.run).state is Integrity.COMPLETE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[",
        b'{"traceEvents"',
        b'{"a":' + b"[" * 100_000,
        b"\x1f\x8b" + b"\0" * 50,
        b'{"schemaVersion":1}',
        b'"text"',
        b"\0" * 1000,
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    tmp_path: Path, import_files: Import, content: bytes
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(UnreadableError, match=r"\A[^\n]+\Z"):
        import_files(IMPORTER, tmp_path / "bad.json")


def test_a_bomb_is_not_unpacked(tmp_path: Path, import_files: Import) -> None:
    event = json.dumps(two_steps()[4]).encode() + b","
    (tmp_path / "bomb.json.gz").write_bytes(
        gzip.compress(b'{"traceEvents": [' + event + b" " * 90_000_000, 9)
    )
    (made,) = import_files(IMPORTER, tmp_path / "bomb.json.gz")
    assert any("it is not read further" in flag for flag in made.flags)


def test_times_that_cannot_be_are_dropped_or_repaired_and_the_ranking_is_the_clean_one(
    tmp_path: Path, import_files: Import
) -> None:
    clean = [
        kernel(
            f"volta_sgemm_{index % 7}x64_nt", us(str(index * 100)), str(10 + index % 7 * 10), index
        )
        for index in range(200)
    ]
    (sound,) = import_files(IMPORTER, write_trace(tmp_path / "clean.json", clean))
    dirty = [dict(event) for event in clean]
    dirty[20]["dur"] = "7450000000000000"  # 236 years
    dirty[40]["dur"] = "-3"
    dirty[60] |= {"ts": "0", "dur": "0"}
    dirty[80]["dur"] = "5050"  # reaches over the fifty that follow
    dirty[100]["ts"] = us(str(10**13))
    dirty[120]["dur"] = "4000000000"
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "dirty.json", dirty[::-1]))
    assert sorted(flag for flag in made.flags if flag.startswith(("dropped", "repaired"))) == [
        "dropped 1 device events longer than an hour",
        "dropped 1 events longer than a week",
        "dropped 1 events more than a week from the others",
        "dropped 1 events that end before they start",
        "dropped 1 events with a timestamp of zero",
        "repaired 1 device events that ended after the next one on their stream began",
    ]
    assert _ranking(sound.run)[:5] == _ranking(made.run)[:5]


def _ranking(run: Path) -> list[str]:
    kernels = Trace.open(run).kernels
    total: dict[str, int] = {}
    for row in kernels.to_pylist():
        total[row["name"]] = total.get(row["name"], 0) + (row["end_ns"] - row["start_ns"])
    return sorted(total, key=lambda name: (-total[name], name))


# ---- real files against a brute force ----


def _raw_work(path: Path) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of all device work, by the standard library and in decimals."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for event in json.loads(text, parse_float=Decimal)["traceEvents"]:
        category = str(event.get("cat", "")).casefold()
        if event.get("ph") == "X" and category in {
            "kernel",
            "gpu_memcpy",
            "gpu_memset",
            "memcpy",
            "memset",
        }:
            start, duration = (int(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            kind = "moves"
            if category == "kernel":
                exchange = categorise(event["name"]) == COMMUNICATION
                kind = "communication" if exchange else "compute"
            yield kind, start, start + duration


def brute_force(work: list[tuple[str, int, int]]) -> dict[str, int]:
    """Add up the times by walking over every boundary in order."""
    borders = sorted(
        [(start, kind, 1) for kind, start, _ in work] + [(end, kind, -1) for kind, _, end in work]
    )
    running = {"compute": 0, "communication": 0, "moves": 0}
    found = dict.fromkeys((*running, "busy", "idle", "overlap", "exposed"), 0)
    for (time, kind, change), (later, _, _) in pairwise(borders):
        running[kind] += change
        span = later - time
        for each, count in running.items():
            found[each] += span if count else 0
        found["busy" if any(running.values()) else "idle"] += span
        if running["communication"]:
            found["overlap" if running["compute"] else "exposed"] += span
    return found


def as_dict(times: DeviceTime) -> dict[str, int]:
    return {
        "compute": times.compute_ns,
        "communication": times.communication_ns,
        "moves": times.moves_ns,
        "busy": times.busy_ns,
        "idle": times.idle_ns,
        "overlap": times.overlap_ns,
        "exposed": times.exposed_ns,
    }


@needs_data
@pytest.mark.parametrize("path", KINETO, ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
def test_device_times_equal_a_brute_force(path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, path)
    (found,) = device_times(Trace.open(made.run).kernels)
    assert as_dict(found) == brute_force(list(_raw_work(path)))


@needs_data
@pytest.mark.parametrize(
    ("folder", "kept", "idle_ns", "compute_ns"),
    [
        ("h100_qwen", "all", 4_005_532, 45_432_698),
        ("resnet_2080ti", "all", 9_789_089_000, 4_103_141_000),
        ("resnet50_num_workers_0", "launched before the last step", 208_143_000, 504_477_000),
    ],
)
def test_figures_equal_another_tools_on_the_rows_that_it_keeps(
    folder: str, kept: str, idle_ns: int, compute_ns: int, import_files: Import
) -> None:
    """Compare with HolisticTraceAnalysis 0.6.1; docs/import.md explains the differences."""
    (path,) = [path for path in KINETO if path.parent.name == folder]
    trace = Trace.open(import_files(IMPORTER, path)[0].run)
    kernels = trace.kernels
    if kept != "all":
        last = pc.max(trace.steps["step"])
        kernels = kernels.filter(
            pc.and_(
                pc.is_valid(kernels["launch_ns"]),
                pc.fill_null(pc.not_equal(kernels["step"], last), pa.scalar(True)),
            )
        )
    (found,) = device_times(kernels)
    assert (found.idle_ns, found.compute_ns) == (idle_ns, compute_ns)


_ON_TENSOR_CORES = re.compile(
    r"(?:s|h|i)(?:884|1688|16816|16832)|tensorop|wmma|gmma", re.IGNORECASE
)
_ON_OTHERS = re.compile(r"simt|ffma", re.IGNORECASE)


@needs_data
def test_next_to_no_kernel_time_is_uncategorised_and_columns_agree_with_names(
    import_files: Import,
) -> None:
    other = total = 0
    communication: set[str] = set()
    for importer, paths in ((IMPORTER, KINETO[:2] + KINETO[9:]), (nsys.IMPORTER, NSYS)):
        for path in paths:
            kernels = Trace.open(import_files(importer, path)[0].run).kernels
            length = pc.subtract(kernels["end_ns"], kernels["start_ns"]).to_numpy()
            total += int(length.sum())
            other += int(length[np.array(kernels["category"].to_pylist()) == UNCATEGORISED].sum())
            told = set(
                zip(
                    *(
                        kernels[column].to_pylist()
                        for column in ("name", "category", "tensor_core")
                    ),
                    strict=True,
                )
            )
            communication |= {name for name, category, _ in told if category == COMMUNICATION}
            assert not [
                name
                for name, category, _ in told
                if "nccl" in name.casefold() and category != COMMUNICATION
            ]
            assert not [
                name
                for name, category, used in told
                if category in MATRIX_WORK and used is not True and _ON_TENSOR_CORES.search(name)
            ]
            assert not [name for name, _, used in told if used and _ON_OTHERS.search(name)]
    assert other <= 0.02 * total
    assert total > 0
    assert any("ncclKernel" in name for name in communication)
    assert any("ncclDevKernel" in name for name in communication)


@needs_data
def test_eight_ranks_of_one_job_are_one_run(import_files: Import) -> None:
    paths = [path for path in KINETO if path.parent.name == "dlrm_8rank_v100"]
    (made,) = import_files(IMPORTER, *paths)
    trace = Trace.open(made.run)
    assert (len(trace.ranks), trace.missing_ranks) == (8, ())
    assert {row["op"] for row in trace.collectives.to_pylist()} == {"send_recv", "all_reduce"}
    assert all(row["bytes"] > 0 for row in trace.collectives.to_pylist())


@needs_data
def test_the_pure_path_writes_the_same_run(
    import_files: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = [path for path in KINETO if path.parent.name == "h100_qwen"]
    (ours,) = import_files(IMPORTER, path)
    monkeypatch.setattr("profkit.importers.reading.chrome.CompiledScanner", None)
    (pure,) = import_files(IMPORTER, path)
    for table in ("steps", "spans", "kernels", "collectives"):
        assert (
            Trace.open(ours.run).table(table).to_pylist()
            == Trace.open(pure.run).table(table).to_pylist()
        )


# ---- what a reader must know of a file ----


def test_an_operator_keeps_its_kernels_after_many_children(
    tmp_path: Path, import_files: Import
) -> None:
    """A CUDA graph replays thousands of operators in one."""
    events = [host("cpu_op", "graph::replay", us("0"), "9000")]
    for child in range(500):
        events.append(host("cpu_op", f"child{child % 7}", us(str(10 + child)), "1"))
    events.append(host("cuda_runtime", "cudaLaunchKernel", us("8000"), "5", correlation=1))
    events.append(kernel("late", us("8010"), "10", 1))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert Trace.open(made.run).kernels["op"].to_pylist() == ["graph::replay"]


def test_unknown_devices_and_shared_ids_are_flagged(tmp_path: Path, import_files: Import) -> None:
    events = [*two_steps(), host("cuda_runtime", "cudaLaunchKernel", us("900"), "5", correlation=1)]
    for place in range(3):
        events.append(host("mtia_ccp_events", "job", us(str(place)), "1"))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    text = " ".join(report_text(build_overview(Trace.open(made.run))).split())
    for words in (f"{UNKNOWN_EVENTS} (3 mtia_ccp_events)", f"1 call {DUPLICATES}"):
        assert words in made.flags
        assert words in text


def test_a_file_without_device_work_says_so(tmp_path: Path, import_files: Import) -> None:
    events = [host("cpu_op", "aten::mm", us("0"), "10"), host("mtia", "x", us("5"), "1")]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert NO_DEVICE_WORK in made.flags
    assert build_overview(Trace.open(made.run)).devices is None


def test_the_users_folder_is_in_no_flag(tmp_path: Path, import_files: Import) -> None:
    home = tmp_path / "home" / "alice"
    home.mkdir(parents=True)
    path = write_trace(home / "worker3.json", two_steps() * 50)
    path.write_bytes(gzip.compress(path.read_bytes())[:-40])
    (made,) = import_files(IMPORTER, path)
    assert any("gzip data" in flag for flag in made.flags)
    assert made.run.name == "worker3"
    assert all(b"alice" not in file.read_bytes() for file in made.run.rglob("*") if file.is_file())


def test_files_that_are_named_by_their_rank_give_the_folders_name(
    tmp_path: Path, import_files: Import
) -> None:
    (tmp_path / "with_amp").mkdir()
    path = write_trace(tmp_path / "with_amp" / "worker0.pt.trace.json", two_steps())
    (made,) = import_files(IMPORTER, path)
    assert made.run.name == "with_amp"
    assert Trace.open(made.run).manifest.workload == ""


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(UnreadableError, match="not a regular file"):
        plan_import([tmp_path / "trace.json"], {"kineto": IMPORTER})


@pytest.mark.parametrize("inner", ["[" * 3_000 + "]" * 3_000, '"' + "x" * 2_000_000 + '"'])
def test_an_event_that_is_too_deep_or_too_long_is_no_early_end(
    tmp_path: Path, import_files: Import, inner: str
) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":{"a":%s}}'
    (tmp_path / "job.json").write_text('{"traceEvents":[' + event % inner + "]}")
    with pytest.raises(UnreadableError, match="nested too deeply, or are too long"):
        import_files(IMPORTER, tmp_path / "job.json")
    (tmp_path / "torn.json").write_text('{"traceEvents":[' + event % '"x' + "")
    with pytest.raises(UnreadableError, match="it ends early"):
        import_files(IMPORTER, tmp_path / "torn.json")


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("wait_sparse_data_dist", "unknown"),
        ("MPI_Init", "unknown"),
        ("xfuser", "unknown"),
        ("retrieval", "unknown"),
        ("all2all:wait", "allreduce"),
        ("record_param_comms: all_to_all", "allreduce"),
        ("evaluate", "other"),
        ("save_checkpoint", "other"),
    ],
)
def test_an_annotation_that_nobody_knows_is_no_evaluation(
    name: str, phase: str, tmp_path: Path, import_files: Import
) -> None:
    events = [host("user_annotation", name, us("0"), "100"), *two_steps()[:1]]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "job.json", events))
    assert Trace.open(made.run).spans["phase"].to_pylist() == [phase]


def test_sends_and_receives_of_an_all_to_all_are_one() -> None:
    kernel_name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    assert operation_of({}, kernel_name, "nccl:all_to_all") == "all_to_all"
    assert operation_of({}, kernel_name, "nccl:send 0->1") == "send_recv"


def test_the_devices_pace_is_the_step_if_the_host_runs_ahead(
    tmp_path: Path, import_files: Import
) -> None:
    """The host takes 16 ms for a step, and the device 20 ms; what is queued is not lost."""
    events: list[Event] = []
    for step in range(12):
        at, number = step * 16_000, step + 1
        events.append(host("user_annotation", f"ProfilerStep#{step}", us(str(at)), "16000"))
        events.append(host("cpu_op", "aten::mm", us(str(at + 100)), "15000"))
        launch = us(str(at + 200))
        events.append(host("cuda_runtime", "cudaLaunchKernel", launch, "5", correlation=number))
        events.append(kernel("sgemm", us(str(1_000 + step * 20_000)), "20000", number))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "ahead.json", events))
    view = build_overview(Trace.open(made.run))
    assert view.step_ns.value == pytest.approx(20e6)
    assert AT_DEVICE_PACE in made.flags
    assert view.devices is not None
    assert view.devices.whole.busy_ns / view.devices.device_steps == pytest.approx(20e6)
    assert not view.unknown_places
    assert sum(part.share.value for part in view.phases) == pytest.approx(1)


def test_work_that_ends_a_little_after_its_step_moves_no_step(
    tmp_path: Path, import_files: Import
) -> None:
    events: list[Event] = []
    for step in range(12):
        at, number = step * 16_000, step + 1
        events.append(host("user_annotation", f"ProfilerStep#{step}", us(str(at)), "16000"))
        launch = us(str(at + 200))
        events.append(host("cuda_runtime", "cudaLaunchKernel", launch, "5", correlation=number))
        events.append(kernel("sgemm", us(str(at + 2_000)), "15000", number))
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "behind.json", events))
    assert AT_DEVICE_PACE not in made.flags
    view = build_overview(Trace.open(made.run))
    assert view.step_ns.value == pytest.approx(16e6)


def test_the_longest_gaps_name_the_hosts_call_and_its_line(
    tmp_path: Path, import_files: Import
) -> None:
    events: list[Event] = []
    for step in range(3):
        at = step * 10_000
        events.append(host("user_annotation", f"ProfilerStep#{step}", us(str(at)), "10000"))
        events.append(kernel("sgemm", us(str(at + 100)), "900", 2 * step + 1))
        events.append(kernel("relu", us(str(at + 9_000)), "500", 2 * step + 2))
        for place, number in ((50, 2 * step + 1), (8_990, 2 * step + 2)):
            call = us(str(at + place))
            events.append(host("cuda_runtime", "cudaLaunchKernel", call, "5", correlation=number))
        frame = host("python_function", "train.py(99): slow_hook", us(str(at + 1_100)), "7800")
        short = host("python_function", "torch/ops.py(1): add", us(str(at + 1_200)), "90")
        free = host("cuda_runtime", "cudaFree", us(str(at + 1_150)), "7700", correlation=0)
        events += [frame, short, free]
    (made,) = import_files(IMPORTER, write_trace(tmp_path / "idle.json", events))
    found = Trace.open(made.run).manifest.config["device_idle"]
    assert found["idle_ns"] == 3 * 8_000_000 + 2 * 600_000
    assert found["calls"]["cudaFree"] == 3 * 7_700_000
    assert [gap["step"] for gap in found["gaps"][:3]] == [0, 1, 2]
    longest = found["gaps"][0]
    assert (longest["call"], longest["line"]) == ("cudaFree", "train.py(99): slow_hook")
    assert made.dropped["Python frames, marks and counters"] == 6
    shown = " ".join(report_text(build_overview(Trace.open(made.run))).split())
    assert "the host was most in cudaFree (91.7 % of all idle time)" in shown
    assert "cudaFree train.py(99): slow_hook" in shown
