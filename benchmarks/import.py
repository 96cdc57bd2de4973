"""Measure the import of a large PyTorch trace.

    python benchmarks/import.py [--source TRACE] [--megabytes 200 1000] [--repeats 3] [--write]

The file is a real trace (`--source`, by default the largest of ../shared/data/kineto), repeated
at later times until it has the size. Whole processes run `profkit import FILE`, plain and
gzipped. `--write` writes docs/results/import.json. Exits 1 above the limits of time, memory or
stored size.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results
from grown_trace import make_trace
from processes import Cost, bytecode_in, measure

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "kineto"
LIMITS = {200: (1.5, 700.0), 1000: (6.0, 700.0)}
"""Seconds and megabytes by the size of the text."""
LIMIT_BYTES_AN_EVENT = 8.0

_READ = (
    "import sys; from pathlib import Path; from profkit.importers.reading.chrome import "
    "read_chrome; read_chrome(Path(sys.argv[1]))"
)


def median(
    command: Sequence[str], repeats: int, folder: Path, environment: Mapping[str, str]
) -> Cost:
    """Run the command `repeats` times after one warm-up, and remove its output each time."""
    seen = []
    for turn in range(repeats + 1):
        shutil.rmtree(folder, ignore_errors=True)
        cost = measure(command, environment)
        seen += [cost] if turn else []
    return Cost(
        *(statistics.median(column) for column in zip(*(cost[:3] for cost in seen), strict=True))
    )


def bench_size(megabytes: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path, runs, environment = (
        folder / f"{megabytes}.json",
        folder / "runs",
        bytecode_in(folder / "bytecode"),
    )
    events = make_trace(arguments.source, path, megabytes * 10**6)
    ours = [sys.executable, "-m", "profkit", "import", "-o", str(runs)]
    plain = median([*ours, str(path)], arguments.repeats, runs, environment)
    stored = sum(file.stat().st_size for file in next(runs.iterdir()).rglob("*") if file.is_file())
    found: dict[str, Any] = {
        "megabytes": round(path.stat().st_size / 1e6),
        "duration_events": events,
        "plain": _row(plain),
        "reading_alone": _row(
            median(
                [sys.executable, "-c", _READ, str(path)],
                arguments.repeats,
                folder / "none",
                environment,
            )
        ),
        "stored_bytes_an_event": round(stored / events, 2),
    }
    subprocess.run(["gzip", "-6", "-f", path], check=True)
    packed = median([*ours, f"{path}.gz"], arguments.repeats, runs, environment)
    found["gzipped"] = _row(packed)
    seconds, peak = LIMITS.get(megabytes, (float("inf"), float("inf")))
    found["within_limits"] = (
        max(plain.wall_s, packed.wall_s) <= seconds
        and max(plain.peak_mb, packed.peak_mb) <= peak
        and stored / events <= LIMIT_BYTES_AN_EVENT
    )
    return found


def _row(cost: Cost) -> dict[str, float]:
    return {
        "wall_s": round(cost.wall_s, 2),
        "cpu_s": round(cost.cpu_s, 2),
        "peak_mb": round(cost.peak_mb),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--source", type=Path, default=DATA / "resnet_2080ti" / "resnet_kineto.json.gz"
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if not arguments.source.exists():
        print(
            f"{arguments.source} is not here; name a PyTorch trace with --source", file=sys.stderr
        )
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = [
            bench_size(megabytes, arguments, Path(folder)) for megabytes in arguments.megabytes
        ]
    print(json.dumps(found, indent=2))
    if arguments.write:
        results.write("import", found)
    return 0 if all(row["within_limits"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
