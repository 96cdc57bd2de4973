"""Measure the timeline of a large run: time to its first frame, and from key to answer.

    python benchmarks/timeline.py [--ranks 32] [--steps 1000] [--kernels-per-step 1000]
                                  [--run FOLDER] [--keys 60]

Makes the run first, unless `--run` names a folder that already holds it. A million kernels per
rank take 20 MB. Each case is a process of its own, driven through Textual's pilot at 200x50.
`first frame` is the time from the start of the process to the first picture with every rank's
phases. Keys pan, zoom, move and jump. Exits 1 above 1.5 s to the first frame, 1.5 GB, or 100 ms
at the keys' 95th percentile. Also prints the machine's load and the CPU time, which is more
reliable on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from open_trace import bytecode_in

FIRST_FRAME_LIMIT_S = 1.5
MEMORY_LIMIT_MB = 1500.0
KEY_LIMIT_MS = 100.0
SIZE = (200, 50)
WALK = (
    "plus",
    "right",
    "right",
    "plus",
    "left",
    "down",
    "full_stop",
    "right_square_bracket",
    "minus",
    "greater_than_sign",
    "L",
    "0",
)


async def drive(run: Path, keys: int, began_s: float, *, devices: bool) -> dict[str, float]:
    """Open the run, then press keys; with `devices` each rank's row shows its million kernels.

    A key is answered when the screen is next painted. The pilot returns later: it waits until the
    process is idle, and reading another rank delays that.
    """
    from profkit.tui.app import ProfkitApp
    from profkit.tui.screens.timeline import TimelineScreen

    painted: list[float] = []

    class Timed(ProfkitApp):
        def _display(self, *painting: Any) -> None:
            super()._display(*painting)
            painted.append(time.perf_counter())

    app = Timed(run, screen="timeline")
    gc.freeze()  # as the verb does
    async with app.run_test(size=SIZE) as pilot:
        while not (
            isinstance(app.screen, TimelineScreen)
            and app.screen.sight is not None
            and app.screen.sight.view is not None
        ):
            await pilot.pause(0.005)
        first_s, first_cpu_s = time.time() - began_s, time.process_time()
        if devices:
            await pilot.press("v")
        await app.workers.wait_for_complete()
        all_read_s = time.time() - began_s
        took_ms, cpu_ms = [], []
        for turn in range(keys):
            start, cpu = time.perf_counter(), time.process_time()
            painted.clear()
            await pilot.press(WALK[turn % len(WALK)])
            took_ms.append((min(painted, default=time.perf_counter()) - start) * 1e3)
            cpu_ms.append((time.process_time() - cpu) * 1e3)
    return {
        "first_frame_s": round(first_s, 3),
        "first_frame_cpu_s": round(first_cpu_s, 3),
        "all_read_s": round(all_read_s, 3),
        "key_median_ms": round(statistics.median(took_ms), 1),
        "key_p95_ms": round(statistics.quantiles(took_ms, n=20)[-1], 1),
        "key_cpu_median_ms": round(statistics.median(cpu_ms), 1),
        "key_slowest_ms": round(max(took_ms), 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    }


def measure(run: Path, keys: int, cache: Path, *, devices: bool) -> dict[str, float]:
    """Measure one case in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--case",
        str(run),
        "--keys",
        str(keys),
        *(["--devices"] if devices else []),
    ]
    environment = {
        **bytecode_in(cache.parent / "bytecode"),
        "PROFKIT_CACHE": str(cache),
        "PROFKIT_BENCH_BEGAN": str(time.time()),
    }
    found: dict[str, float] = json.loads(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    )
    return found


def make_run(folder: Path, arguments: argparse.Namespace) -> Path:
    from profkit.testing import synthetic_trace

    if not folder.exists():
        synthetic_trace(
            folder,
            ranks=arguments.ranks,
            steps=arguments.steps,
            kernels_per_step=arguments.kernels_per_step,
            device="cuda",
        )
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--kernels-per-step", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--case", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--devices", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        began_s = float(os.environ["PROFKIT_BENCH_BEGAN"])
        case = drive(arguments.case, arguments.keys, began_s, devices=arguments.devices)
        print(json.dumps(asyncio.run(case)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(arguments.run or Path(folder) / "run", arguments)
        # The first run leaves the bytecode that an installed program has.
        measure(run, len(WALK), Path(folder) / "none", devices=False)
        load = os.getloadavg()[0]
        cases = {
            "phases": measure(run, arguments.keys, Path(folder) / "none", devices=False),
            "kernels of all ranks, never opened": measure(
                run, arguments.keys, Path(folder) / "cache", devices=True
            ),
            "kernels of all ranks, opened before": measure(
                run, arguments.keys, Path(folder) / "cache", devices=True
            ),
        }
    limits = {
        "first_frame_s": FIRST_FRAME_LIMIT_S,
        "peak_mb": MEMORY_LIMIT_MB,
        "key_p95_ms": KEY_LIMIT_MS,
    }
    kernels = arguments.ranks * arguments.steps * arguments.kernels_per_step
    found = {
        "ranks": arguments.ranks,
        "kernels": kernels,
        "load_average": round(load, 1),
        **cases,
        "limits": limits,
    }
    print(json.dumps(found, indent=2))
    within = all(case[name] <= limit for case in cases.values() for name, limit in limits.items())
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
