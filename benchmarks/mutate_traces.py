"""Flip bytes of traces and cut them. Each import must give a run or one clear line.

    python benchmarks/mutate_traces.py [--count 50000] [--formats kineto nsys ...] [--seed 0]
                                       [--source FORMAT=FILE]

Each mutation is imported in this process with an alarm. Allowed are a run that verifies, or an
`UnreadableError` of one line. Not allowed are any other exception, a hang over 5 s, and growing
memory. A changed digit cannot be noticed in a text without checksums; in a gzipped one it is.
Exits 1 at any failure.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from profkit.errors import UnreadableError
from profkit.importers.base import Importer, Target, recognise
from profkit.plugins import IMPORTERS
from profkit.trace import verify
from profkit.vocab import Integrity

LONGEST_S = 5
MOST_GROWTH_MB = 200.0
_MARKS = b'"\\{}[],:0eE.-+nNtX \x00\xff\n'


class HungError(Exception):
    """Reading took longer than allowed."""


@dataclass
class Found:
    """Counts of the mutations' outcomes, and the failures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    growth_mb: float = 0.0


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with some bytes flipped, replaced, removed or repeated, or cut."""
    made = bytearray(content)
    if chance.random() < 0.25:
        del made[chance.randrange(len(made)) :]
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not made:
            break
        place = chance.randrange(len(made))
        kind = chance.randrange(5)
        if kind == 0:
            made[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[place] = chance.choice(_MARKS)
        elif kind == 2:
            made[place] = chance.randrange(256)
        elif kind == 3:
            del made[place : place + chance.randrange(1, 40)]
        else:
            made[place:place] = made[place : place + chance.randrange(1, 200)]
    return bytes(made)


def mutate_format(name: str, content: bytes, count: int, seed: int, *, suffix: str = "") -> Found:
    """Import `count` mutations of `content` in this format."""
    importer: Importer = IMPORTERS.load(name)
    chance, found = random.Random(seed), Found()
    before = _peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rank0{suffix}"
        for number in range(count):
            mutated = mutate(content, chance)
            path.write_bytes(mutated)
            begun = time.perf_counter()
            try:
                found.outcomes[_import(importer, path, Path(folder) / "traces")] += 1
            except (Exception, HungError) as error:  # noqa: BLE001  # any other error is a failure
                found.failures.append(
                    f"{name}, seed {seed}, mutation {number}: {type(error).__name__}: {error}"[:300]
                )
            found.slowest_s = max(found.slowest_s, time.perf_counter() - begun)
    found.growth_mb = _peak_mb() - before
    if found.growth_mb > MOST_GROWTH_MB + 2 * len(content) / 1e6:
        found.failures.append(f"{name}: memory grew by {found.growth_mb:.0f} MB")
    return found


def _import(importer: Importer, path: Path, traces: Path) -> str:
    """Import one file: `refused`, or `read` if every run of it verifies. Raise otherwise."""
    signal.alarm(LONGEST_S)
    try:
        recognise(path, {importer.name: importer})
        runs = list(importer.read([path], Target(traces)))
        states = {verify(made.run).state for made in runs}
    except UnreadableError as error:
        if "\n" in str(error):
            raise ValueError("an error of several lines") from error
        return "refused"
    finally:
        signal.alarm(0)
        shutil.rmtree(traces, ignore_errors=True)
    if not states <= {Integrity.COMPLETE, Integrity.ENDED_EARLY}:
        raise ValueError(f"a run that is {states}")
    return "read, and flagged" if any(made.flags for made in runs) else "read"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _hang(number: int, frame: FrameType | None) -> None:
    raise HungError(f"longer than {LONGEST_S} s")


# ---- small files of each format ----


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
    told = {
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
        "args": told,
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


def run(forms: Sequence[str], count: int, seed: int) -> dict[str, Found]:
    """Read the mutations of each form, with an alarm."""
    previous = signal.signal(signal.SIGALRM, _hang)
    try:
        return {
            form: mutate_format(
                SOURCES[form][0], SOURCES[form][1](), count, seed, suffix=SOURCES[form][2]
            )
            for form in forms
        }
    finally:
        signal.signal(signal.SIGALRM, previous)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--formats", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = run(arguments.formats, arguments.count, arguments.seed)
    shown = {
        form: {
            **each.outcomes,
            "slowest_s": round(each.slowest_s, 2),
            "growth_mb": round(each.growth_mb, 1),
            "failures": each.failures[:20],
        }
        for form, each in found.items()
    }
    print(json.dumps(shown, indent=2))
    return 1 if any(each.failures for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
