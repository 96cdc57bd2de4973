"""Measure the import of a large PyTorch trace, next to HolisticTraceAnalysis.

    python benchmarks/import.py [--source TRACE] [--megabytes 200 1000] [--repeats 3]
                                [--hta PYTHON] [--hta-megabytes 200]

The file is a real trace (`--source`, by default the largest of ../shared/data/kineto), repeated
at later times until it has the size. Whole processes run `profkit import FILE`, plain and
gzipped, and HTA's loading with its temporal breakdown. `--hta` is a Python with `traceinsight`
(`uv venv /tmp/hta; uv pip install --python /tmp/hta traceinsight==0.6.1`). If both have figures
for the same device, they are compared. Exits 1 above the limits of time, memory or stored size.
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

from grown_trace import make_trace
from processes import Cost, bytecode_in, measure

from profkit.analysis.kernels.device_time import device_times
from profkit.trace import Trace

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "kineto"
LIMITS = {200: (1.5, 700.0), 1000: (6.0, 700.0)}
"""Seconds and megabytes by the size of the text."""
LIMIT_BYTES_AN_EVENT = 8.0

_READ = (
    "import sys; from pathlib import Path; from profkit.importers.reading.chrome import "
    "read_chrome; read_chrome(Path(sys.argv[1]))"
)
HTA = Path("/tmp/hta/bin/python")
"""The interpreter that the command in the module's docstring installs."""

_HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
print(analysis.get_temporal_breakdown(visualize=False).to_json(orient="records"))
"""


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


def compare(run: Path, printed: str) -> dict[str, Any]:
    """Return idle and computing time of the device by both tools, in nanoseconds."""
    (ours,) = device_times(Trace.open(run).kernels)
    (theirs,) = json.loads(printed.splitlines()[-1])
    hta = {
        "idle_ns": round(theirs["idle_time(us)"] * 1000),
        "compute_ns": round(theirs["compute_time(us)"] * 1000),
    }
    return {
        "profkit": {"idle_ns": ours.idle_ns, "compute_ns": ours.compute_ns},
        "hta": hta,
        "equal": hta["idle_ns"] == ours.idle_ns,
    }


def bench_size(megabytes: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path, runs, environment = (
        folder / f"{megabytes}.json",
        folder / "runs",
        bytecode_in(folder / "bytecode"),
    )
    events = make_trace(arguments.source, path, megabytes * 10**6)
    ours = [sys.executable, "-m", "profkit", "import", "-o", str(runs)]
    plain = median([*ours, str(path)], arguments.repeats, runs, environment)
    run = next(runs.iterdir())
    stored = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
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
    if arguments.hta and megabytes <= arguments.hta_megabytes:
        peer = measure([str(arguments.hta), "-c", _HTA, str(path)], environment)
        found["hta"] = _row(peer)
        found["times_faster"] = round(peer.wall_s / plain.wall_s, 1)
        found["times_smaller"] = round(peer.peak_mb / plain.peak_mb, 1)
        found["figures"] = compare(run, peer.printed)
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
    parser.add_argument(
        "--hta", type=Path, default=HTA if HTA.exists() else None, help="(default: %(default)s)"
    )
    parser.add_argument("--hta-megabytes", type=int, default=200)
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
    return 0 if all(row["within_limits"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
