"""Measure what recording costs a short DDP step, with whole processes in alternation.

Control steps (recording off) cannot show this cost, because the gradient exchange is observed in
them, too. So each pair starts the job twice, on two ranks over gloo: bare, and under
`profkit run`. The peer is the same job with torch's own `allreduce_hook`, a communication hook in
Python. Each process times its own steps. The median and the mean of each process are used, and
each pair gives their differences.

Each rank's training thread keeps a processor of its own; gloo's threads may use all. Without that,
on two processors, the median of a bare process is 0.9 or 1.5 ms, by chance.

  python benchmarks/ddp.py [--pairs 8] [--steps 2000] [--keep FILE | --show]

`--keep` appends the pairs to a file and reports all pairs in it, so that the published figure is
the pooled estimate over all runs. Exits 1 if a median costs more than 0.15 ms per step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

LIMIT_MS = 0.15
RANKS = 2
LEAD_IN = 1000
"""Steps that are not timed, 1 to 2 s: buckets are rebuilt, files are opened."""

MODES = ("bare", "profkit", "allreduce_hook")


@dataclass(frozen=True)
class Case:
    """A model of linear layers and the size of its buckets."""

    name: str
    width: int
    layers: int
    bucket_mb: float


CASES = (
    Case("one bucket, about 1 ms", 64, 2, 25.0),
    Case("two buckets, about 2 ms", 96, 4, 0.05),
)


def train(case: Case, mode: str, steps: int, out: Path) -> None:
    """Train one rank of the job without profkit, and write how long each step took."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(case.width, case.width) for _ in range(case.layers - 1)]
    net = torch.nn.Sequential(*hidden, torch.nn.Linear(case.width, 10))
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=case.bucket_mb)
    if mode == "allreduce_hook":
        model.register_comm_hook(None, allreduce_hook)
    os.sched_setaffinity(0, {torch.distributed.get_rank() % (os.cpu_count() or 1)})
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    count = 32 * (steps + LEAD_IN)
    batches = torch.utils.data.TensorDataset(
        torch.randn(count, case.width),
        torch.randint(0, 10, (count,)),
    )
    ends = [time.perf_counter_ns()]
    for inputs, labels in torch.utils.data.DataLoader(batches, batch_size=32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter_ns())
    took = [(after - before) / 1e6 for before, after in itertools.pairwise(ends)]
    rank = torch.distributed.get_rank()
    (out / f"{rank}.json").write_text(json.dumps(took[LEAD_IN:]))
    time.sleep(0.2)  # gloo's threads release the last bucket
    torch.distributed.destroy_process_group()


def launch(arguments: Sequence[str]) -> int:
    """Start the ranks; torch's own launcher would import torch a third time, for 5 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = []
    for rank in range(RANKS):
        group = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        words = [sys.executable, __file__, *arguments]
        started.append(subprocess.Popen(words, env=os.environ | group))
    return max([process.wait() for process in started])


def run_once(case: Case, mode: str, steps: int) -> dict[str, float]:
    """Run the job in one mode; return the median and the mean of rank 0's steps in ms."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--launch", "--job", case.name, "--mode", mode]
        words += ["--steps", str(steps), "--out", folder]
        if mode == "profkit":
            words = [sys.executable, "-m", "profkit", "run", "-o", f"{folder}/traces", "--", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        subprocess.run(words, check=True, env=environment, stderr=subprocess.DEVNULL)
        took = json.loads((Path(folder) / "0.json").read_text())
    return {"median_ms": statistics.median(took), "mean_ms": statistics.fmean(took)}


def measure(pairs: int, steps: int) -> list[dict[str, Any]]:
    """Run the modes of each case alternately, in a new random order each time."""
    random = Random(time.time_ns())
    rows: list[dict[str, Any]] = []
    for number in range(pairs):
        for case in CASES:
            order = random.sample(MODES, len(MODES))
            took = {mode: run_once(case, mode, steps) for mode in order}
            date = datetime.now(timezone.utc).date().isoformat()
            rows.append({"case": case.name, "date": date, "modes": took})
            print(f"pair {number + 1} of {pairs}: {case.name}: {took}", file=sys.stderr)
    return rows


def pool(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean difference from bare per case and mode, with its interval."""
    found: dict[str, Any] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        pairs = [row["modes"] for row in rows if row["case"] == case]
        bare = statistics.fmean(pair["bare"]["median_ms"] for pair in pairs)
        found[case] = {"pairs": len(pairs), "bare_median_ms": bare}
        for mode in MODES[1:]:
            found[case][mode] = {
                kind: _interval([pair[mode][kind] - pair["bare"][kind] for pair in pairs])
                for kind in ("median_ms", "mean_ms")
            }
    return found


def _interval(differences: Sequence[float]) -> dict[str, float]:
    from profkit.analysis.estimate import student_95  # the job itself must not import profkit

    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return {"added_ms": mean, "low_ms": float("-inf"), "high_ms": float("inf")}
    error = statistics.stdev(differences) / len(differences) ** 0.5
    half = student_95(len(differences) - 1) * error
    return {"added_ms": mean, "low_ms": mean - half, "high_ms": mean + half}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--keep", type=Path, help="append the pairs to this file and report all")
    parser.add_argument("--show", action="store_true", help="report the kept pairs, run nothing")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        return launch([word for word in sys.argv[1:] if word != "--launch"])
    if args.job:
        case = next(case for case in CASES if case.name == args.job)
        train(case, args.mode, args.steps, args.out)
        return 0
    rows = json.loads(args.keep.read_text()) if args.keep and args.keep.exists() else []
    if not args.show:
        rows += measure(args.pairs, args.steps)
    if args.keep and not args.show:
        args.keep.write_text(json.dumps(rows, indent=1) + "\n")
    found = pool(rows)
    print(json.dumps({"cases": found}))
    return int(any(case["profkit"]["median_ms"]["added_ms"] > LIMIT_MS for case in found.values()))


if __name__ == "__main__":
    sys.exit(main())
