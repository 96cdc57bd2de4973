"""A small file of each format of traces that profkit imports."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kineto() -> bytes:
    """Operators, launches, kernels, a collective and annotations of a few steps."""
    events: list[dict[str, Any]] = []
    for step in range(4):
        at = 1_712_195_495_519_689 + step * 1000
        events += [*_host_events(step, at), *_kernels(step, at)]
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU", "totalGlobalMem": 1}],
        "distributedInfo": {"rank": 0, "world_size": 2},
    }
    return json.dumps({**header, "traceEvents": events}).encode()


def _host_events(step: int, at: int) -> list[dict[str, Any]]:
    """An annotation, an operator and a launch."""
    return [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "pid": 1,
            "tid": 2,
            "ts": at,
            "dur": 990,
        },
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 2,
            "ts": at + 5,
            "dur": 60,
            "args": {"External id": step + 1},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 2,
            "ts": at + 10,
            "dur": 5,
            "args": {"correlation": step + 7},
        },
    ]


def _kernels(step: int, at: int) -> list[dict[str, Any]]:
    """A kernel and a collective."""
    args = {
        "stream": 7,
        "device": 0,
        "correlation": step + 7,
        "External id": step + 1,
        "grid": [1, 2, 3],
        "block": [128, 1, 1],
        "shared memory": 64,
    }
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "volta_sgemm_128x64_nt",
        "pid": 0,
        "tid": 7,
        "ts": at + 20,
        "dur": 300.125,
        "args": args,
    }
    communication = {
        **args,
        "stream": 9,
        "Collective name": "allreduce",
        "In msg nelems": 64,
        "dtype": "Float",
        "Group size": 2,
    }
    collective = {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "pid": 0,
        "tid": 9,
        "ts": at + 100,
        "dur": 400,
        "args": communication,
    }
    return [kernel, collective]


def nsys() -> bytes:
    """Two kernels, a launch and a range."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        base = sqlite3.connect(path)
        base.executescript("""
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, \
correlationId, globalPid, demangledName, shortName);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
            CREATE TABLE NVTX_EVENTS (start, end, eventType, globalTid, text, textId);
            INSERT INTO StringIds VALUES
                (0, 'volta_sgemm_64x64_nt'), (1, 'cudaLaunchKernel'), (2, 'forward');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
                (150, 250, 0, 7, 11, 16777216, 0, 0), (260, 300, 0, 7, 12, 16777216, 0, 0);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (120, 130, 16777221, 11, 1);
            INSERT INTO NVTX_EVENTS VALUES (100, 500, 59, 16777221, NULL, 2);
        """)
        base.close()
        return path.read_bytes()


def nccl_inspector() -> bytes:
    """Lines of one rank."""
    header = {"id": "0x7f", "rank": 0, "n_ranks": 2}
    perf = {"coll": "AllReduce", "coll_msg_size_bytes": 65536, "coll_exec_time_us": 61.974}
    lines = [
        {
            "header": header,
            "metadata": {"dump_timestamp_us": 1_750_000_000_000_000},
            "coll_perf": {**perf, "coll_sn": number},
        }
        for number in range(8)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def flight_recorder() -> dict[str, Any]:
    """A dump of some collectives."""
    entries = [
        {
            "record_id": number,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 10**18 + number,
            "input_sizes": [[256, 4]],
            "input_dtypes": ["Float"],
            "is_p2p": False,
            "time_discovered_started_ns": 10**18 + number + 100,
            "time_discovered_completed_ns": 10**18 + number + 700,
        }
        for number in range(8)
    ]  # fmt: skip
    return {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries}


SOURCES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "kineto": ("kineto", kineto, ".json"),
    "kineto-gz": ("kineto", lambda: gzip.compress(kineto()), ".json.gz"),
    "nsys": ("nsys", nsys, ".sqlite"),
    "nccl_inspector": ("nccl_inspector", nccl_inspector, ".log"),
    "flight_recorder": ("flight_recorder", lambda: json.dumps(flight_recorder()).encode(), ".json"),
    "flight_recorder-pickle": ("flight_recorder", lambda: pickle.dumps(flight_recorder()), ".pkl"),
}
"""The importer, a small file and the ending of its name, by the form."""
