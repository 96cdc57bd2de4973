"""Measure how explaining grows with ranks: serially, on threads, and on a Dask cluster.

    python benchmarks/ranks.py [--ranks 1 32 1024] [--steps 100] [--repeats 3] [--workers 2]

Whole processes alternate. `ledger` is `profkit explain` of two runs of equal size, `scaling` that
of three of which the first has one rank. Dask's rows include connecting to it, and are missing if
it is not installed. All must give the same bytes. Prints one JSON object of rows, and exits 1 if
bytes differ.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from open_trace import Cost, bytecode_in, medians

_BUILD = (
    "import sys; from pathlib import Path; from profkit.testing import synthetic_trace as "
    "build; build(Path(sys.argv[1]), ranks=int(sys.argv[2]), steps=int(sys.argv[3]), "
    "seed=int(sys.argv[4]))"
)


def build(path: Path, ranks: int, steps: int, seed: int) -> str:
    subprocess.run(
        [sys.executable, "-c", _BUILD, str(path), str(ranks), str(steps), str(seed)], check=True
    )
    return str(path)


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[str | None]:
    """Return the address of a local scheduler, or `None` if Dask is not installed."""
    if importlib.util.find_spec("distributed") is None:
        yield None
        return
    import distributed

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None
    ) as local:
        yield str(local.scheduler_address)


def measure_ranks(
    ranks: int, steps: int, repeats: int, schedulers: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, base, target = (
            build(folder / "alone", 1, steps, 0),
            build(folder / "base", ranks, steps, 1),
            build(folder / "target", ranks, steps, 2),
        )
        environment = bytecode_in(folder / "bytecode")
        for what, runs in {"ledger": (base, target), "scaling": (alone, base, target)}.items():
            commands = {
                each: [
                    sys.executable,
                    "-m",
                    "profkit",
                    "explain",
                    *runs,
                    "--json",
                    "--scheduler",
                    place,
                ]
                for each, place in schedulers.items()
            }
            same = len({digest(command, environment) for command in commands.values()}) == 1
            costs = medians(commands, environment, repeats)
            yield {
                "ranks": ranks,
                "steps": steps,
                "what": what,
                "same_bytes": same,
                **{each: _row(cost) for each, cost in costs.items()},
            }


def digest(command: Sequence[str], environment: Mapping[str, str]) -> str:
    return hashlib.sha256(
        subprocess.run(command, stdout=subprocess.PIPE, env=dict(environment), check=True).stdout
    ).hexdigest()


def _row(cost: Cost) -> dict[str, float]:
    return {"median_s": round(cost.wall_s, 3), "peak_mb": round(cost.peak_mb, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 32, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with cluster(options.workers) as address:
        schedulers = {
            "serial": "serial",
            "threads": "threads",
            **({"dask": address} if address else {}),
        }
        rows = [
            row
            for ranks in options.ranks
            for row in measure_ranks(ranks, options.steps, options.repeats, schedulers)
        ]
    print(
        json.dumps({"repeats": options.repeats, "workers": options.workers, "rows": rows}, indent=2)
    )
    return 0 if all(row["same_bytes"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
