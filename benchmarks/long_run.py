"""Measure what a rank of a long run writes per day, and what reading it takes.

    python benchmarks/long_run.py [--hours 24] [--step-ms 100 10] [--repeats 3]

Writes a synthetic rank as a job does, in flushes of half a second on a clock of its own: steps of
four phases with control steps, exchanges, and readings of 40 kinds per second. Prints bytes per day
and the growth of memory per million steps (a line with its 95 % interval), and time and peak memory
of `profkit report`. Exits 1 above 50 MB per day, or if memory certainly grows by more than 1 MB per
million steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from open_trace import bytecode_in, medians
from soak import fit_growth, resident_mb

from profkit.clock import Anchor
from profkit.instrument.blocks import off_blocks
from profkit.run.wiring import new_thinner
from profkit.trace import RankManifest, RunManifest
from profkit.trace.files import RankFiles
from profkit.trace.recent import FULL_BYTES
from profkit.vocab import RunState

MOST_BYTES_A_DAY = 50e6
MOST_MB_PER_MILLION = 1.0
FLUSH_NS = 500_000_000
DAY_NS = 86_400_000_000_000
PHASES = ("data", "forward", "backward", "optimizer")
SHARES = np.array([0.05, 0.3, 0.6, 0.05])
BUCKETS, READINGS, SAMPLES = 4, 40, 32
SETTLED_SHARE = 0.5
"""After this share of six hours, pools and caches have their size: the first parts are thinned."""


class LongRank:
    """One rank whose steps take random times, with a drift over the day."""

    def __init__(self, step_ns: int) -> None:
        self._random = np.random.default_rng(7)
        self._step_ns = step_ns
        self._is_measured = off_blocks()
        self.steps, self.now = 0, 1_000_000_000

    def flush(self) -> dict[str, dict[str, Any]]:
        """Return the rows of the next flush, by table."""
        count = max(1, FLUSH_NS // self._step_ns)
        numbers = np.arange(self.steps, self.steps + count)
        drift = 1 + 0.05 * np.sin(numbers / 50_000)
        length = drift[:, None] * self._random.gamma(400, self._step_ns / 400, (count, 1))
        length = (length * SHARES * self._random.gamma(400, 1 / 400, (count, 4))).astype(np.int64)
        ends = self.now + np.cumsum(length.ravel() + 2_000)
        starts, ends = ends - length.ravel(), ends.reshape(count, 4)
        begins = np.concatenate([[self.now], ends[:-1, -1]])
        measured = np.array([self._is_measured(step) for step in numbers.tolist()])
        self.steps, self.now = self.steps + count, int(ends[-1, -1])
        tables = {
            "steps": _steps(numbers, begins, ends[:, -1], measured),
            "spans": _spans(numbers, starts.reshape(count, 4), ends, measured),
            "collectives": _collectives(numbers, starts.reshape(count, 4)[:, 2]),
            "samples": self._readings(),
        }
        return {table: rows for table, rows in tables.items() if len(next(iter(rows.values())))}

    def _readings(self) -> dict[str, Any]:
        seconds = (self.now // 1_000_000_000) - (self.now - FLUSH_NS) // 1_000_000_000
        kinds = np.tile(np.arange(READINGS), seconds)
        names = pa.array([f"reading_{kind}" for kind in range(READINGS)])
        return {
            "device": [None] * len(kinds),
            "source": ["host"] * len(kinds),
            "metric": pa.DictionaryArray.from_arrays(pa.array(kinds, pa.int32()), names),
            "time_ns": np.full(len(kinds), self.now),
            "value": self._random.random(len(kinds)),
        }


def _steps(numbers: Any, begins: Any, ends: Any, measured: Any) -> dict[str, Any]:
    nothing = [None] * len(numbers)
    return {
        "step": numbers,
        "start_ns": begins,
        "end_ns": ends,
        "sample_count": [SAMPLES] * len(numbers),
        "loss": nothing,
        "grad_scale": nothing,
        "instrumented": measured.tolist(),
        "epoch": [0] * len(numbers),
    }


def _spans(numbers: Any, starts: Any, ends: Any, measured: Any) -> dict[str, Any]:
    count = int(measured.sum())
    codes = pa.array(np.tile(np.arange(4), count), pa.int32())
    phases = pa.DictionaryArray.from_arrays(codes, pa.array(PHASES))
    return {
        "step": np.repeat(numbers[measured], 4),
        "phase": phases,
        "name": phases,
        "depth": np.zeros(4 * count, dtype=np.int16),
        "thread": ["MainThread"] * (4 * count),
        "start_ns": starts[measured].ravel(),
        "end_ns": ends[measured].ravel(),
    }


def _collectives(numbers: Any, starts: Any) -> dict[str, Any]:
    count = BUCKETS * len(numbers)
    begin = np.repeat(starts, BUCKETS) + np.tile(np.arange(BUCKETS) * 1_000, len(numbers))
    return {
        "communicator": ["0"] * count,
        "sequence": np.arange(count) + int(numbers[0]) * BUCKETS,
        "op": ["all_reduce"] * count,
        "bytes": [25_000_000] * count,
        "dtype": ["float32"] * count,
        "group_size": np.full(count, 8, dtype=np.int32),
        "ready_ns": begin,
        "start_ns": begin,
        "end_ns": begin + 900,
        "backend": ["nccl"] * count,
        "step": np.repeat(numbers, BUCKETS),
        "bucket": np.tile(np.arange(BUCKETS, dtype=np.int32), len(numbers)),
    }


def write_run(folder: Path, step_ns: int, hours: float, *, full_bytes: int) -> dict[str, float]:
    """Write a run of one rank, and return what it took."""
    RunManifest(workload="long", state=RunState.COMPLETE).write(folder)
    files = RankFiles(folder / "r00000", 0, thinner=new_thinner, full_bytes=full_bytes)
    RankManifest(0, "here", 1, "cpu", Anchor(1, 2, 3)).write(files.folder)
    rank, readings, begin = LongRank(step_ns), [], time.process_time()
    end, longest = rank.now + int(hours * 3_600e9), 0.0
    look_every, look_at = (end - rank.now) // 200, 0
    while rank.now < end:
        for table, rows in rank.flush().items():
            files.write(table, rows)
        before = time.perf_counter()
        files.thin(lambda: rank.now)
        longest = max(longest, time.perf_counter() - before)
        if rank.now >= look_at:
            look_at = rank.now + look_every
            readings.append((rank.steps / 1e6, resident_mb()))
    used_s = time.process_time() - begin
    files.close()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    settled = [each for each in readings if each[0] >= SETTLED_SHARE * rank.steps / 1e6]
    slope, error = fit_growth(settled)
    return {
        "steps": rank.steps,
        "mb": size / 1e6,
        "mb_a_day": (full_bytes + (size - full_bytes) * 24 / hours) / 1e6,
        "slope_mb": slope,
        "error_mb": error,
        "writer_us": 1e6 * used_s / rank.steps,
        "longest_ms": 1e3 * longest,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[100.0, 10.0])
    parser.add_argument("--full-mb", type=float, default=FULL_BYTES / 1e6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    said, broken = [], False
    for step_ms in options.step_ms:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            run.mkdir()
            full_bytes = int(options.full_mb * 1e6)
            found = write_run(run, int(step_ms * 1e6), options.hours, full_bytes=full_bytes)
            commands = {"report": [sys.executable, "-m", "profkit", "report", str(run)]}
            cost = medians(commands, bytecode_in(Path(folder) / "bytecode"), options.repeats)
        report = cost["report"]
        said.append(
            f"steps of {step_ms:g} ms: {found['steps']:,.0f} steps in {options.hours:g} h, "
            f"{found['mb']:.1f} MB ({found['mb_a_day']:.1f} MB on the first day), memory "
            f"{found['slope_mb']:+.2f} MB per million steps (± {found['error_mb']:.2f}), thinning "
            f"held the writer at most {found['longest_ms']:.0f} ms, report {report.wall_s:.1f} s "
            f"and {report.peak_mb:.0f} MB"
        )
        print(said[-1], file=sys.stderr)
        broken |= found["mb_a_day"] * 1e6 > MOST_BYTES_A_DAY
        broken |= found["slope_mb"] - found["error_mb"] > MOST_MB_PER_MILLION
    print("; ".join(said))
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
