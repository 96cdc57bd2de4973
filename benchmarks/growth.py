"""Time and memory of `report` and `explain` on runs of many ranks, into docs/results.

python benchmarks/growth.py 64:1000 256:1000 1024:1000 4096:1000 16384:100 --write

A run is one synthetic rank, written again with other rank numbers and times: reading and counting
cost what they cost for real ranks. `report` runs with the default and alone in its process, and
`explain` compares the run with one of a longer forward.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import results

from profkit.schema import SCHEMAS
from profkit.testing import synthetic_trace
from profkit.trace.rank import RankTrace
from profkit.trace.stream import StreamWriter

TIMES = ("ready_ns", "start_ns", "end_ns", "time_ns")
MS = 1_000_000


def make_run(folder: Path, ranks: int, steps: int, forward_ns: int = 12 * MS) -> None:
    """Write a run whose ranks begin each step up to a millisecond apart."""
    phases = {"forward": forward_ns}
    synthetic_trace(folder, ranks=2, steps=steps, kernels_per_step=0, phase_ns=phases)
    manifest = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**manifest, "world_size": ranks}))
    own, random = RankTrace(folder / "one", 1), np.random.default_rng(0)
    shutil.copytree(folder / "r00001", own.folder)
    tables = {name: own.content(name).batches for name in SCHEMAS if own.path(name).exists()}
    for rank in range(ranks):
        place = folder / f"r{rank:05d}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for path in own.folder.glob("*.json"):
            shutil.copy(path, place)
        identity = json.loads((place / "rank.json").read_text())
        (place / "rank.json").write_text(json.dumps({**identity, "rank": rank}))
        end = json.loads((place / "end.json").read_text())
        late_ns = int(random.integers(MS))
        for name, batches in tables.items():
            writer = StreamWriter(place / f"{name}.arrows", name)
            for batch in batches:
                writer.write(_moved(batch, rank, ranks, late_ns))
            writer.close()
            count = writer.count
            end["tables"][name] |= {"bytes": count.bytes, "crc32": count.crc32}
        (place / "end.json").write_text(json.dumps(end))
    shutil.rmtree(own.folder)


def _moved(batch: pa.RecordBatch, rank: int, ranks: int, late_ns: int) -> pa.RecordBatch:
    columns, constant = {}, {"rank": rank, "group_size": ranks}
    for field in batch.schema:
        column = batch[field.name]
        if field.name in constant:
            column = pa.array(np.full(len(column), constant[field.name]), field.type)
        elif field.name in TIMES and not column.null_count:
            column = pa.array(column.to_numpy() + late_ns, field.type)
        columns[field.name] = column
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def measure(*words: str) -> dict[str, float]:
    """Run a command of profkit; return its time, and processor time and memory of the process.

    Those of the processes that it starts are not in the latter two.
    """
    program = (
        "import resource, sys; from profkit.cli import main; code = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr); sys.exit(code)"
    )
    begin = time.perf_counter()
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - begin
    kib, cpu_s = map(float, done.stderr.split()[-2:])
    memory_mb, own_cpu_s = round(kib / 1024), round(cpu_s, 2)
    return {"wall_s": round(wall_s, 2), "own_cpu_s": own_cpu_s, "memory_mb": memory_mb}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", metavar="RANKS:STEPS")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = []
    for size in args.sizes:
        ranks, steps = map(int, size.split(":"))
        with tempfile.TemporaryDirectory() as top:
            run, slower = str(Path(top) / "run"), str(Path(top) / "slower")
            make_run(Path(run), ranks, steps)
            make_run(Path(slower), ranks, steps, 14 * MS)
            for how, *runs in (
                ("report", run),
                ("report --scheduler serial", run),
                ("explain", run, slower),
            ):
                verb, *words = how.split()
                found = measure(verb, *runs, *words)
                rows.append({"ranks": ranks, "steps": steps, "how": how})
                rows[-1] |= {**found, "load_before": round(os.getloadavg()[0], 1)}
                print(rows[-1], flush=True)
    if args.write:
        results.write("growth", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
