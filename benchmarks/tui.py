"""How soon the terminal interface shows something, and how soon it answers a key, driven through Textual's pilot.

    python benchmarks/tui.py [--runs 100] [--ranks 32] [--kernels 1000000] [--keys 40]

A folder of runs has a second to its first frame, a run of many ranks and kernels 1.5 s and 1.5 GB, a key 100 ms (median and 95th
percentile). The pilot runs the whole program but the terminal. Runs are generated into a cache and kept there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from profkit.testing import synthetic_trace
from profkit.workloads._cache import cache_root

STEPS = 100
KEYS_OF_LIST = ("down", "up", "pagedown", "pageup", "comma", "full_stop")
KEYS_OF_TIMELINE = ("right", "left", "plus", "minus", "right_square_bracket", "left_square_bracket")


def folder_of_runs(count: int) -> Path:
    folder = cache_root() / "bench-tui" / f"runs-{count}"
    for number in range(count):
        if not (folder / f"run-{number:03d}").exists():
            synthetic_trace(folder / f"run-{number:03d}", ranks=1 + number % 2, steps=STEPS, seed=number)
    return folder


def large_run(ranks: int, kernels: int) -> Path:
    run = cache_root() / "bench-tui" / f"{ranks}x{kernels}"
    if not run.exists():
        synthetic_trace(run, ranks=ranks, steps=STEPS, kernels_per_step=max(1, kernels // STEPS), device="cuda")
    return run


def measure(path: Path, screen: str, keys: tuple[str, ...], count: int) -> dict[str, float]:
    """In a process of its own, whose start counts: the first frame, the first view, the answers to keys, and the memory at the most."""
    arguments = [str(path), screen, ",".join(keys), str(count)]
    environment = {**os.environ, "BENCH_BEGAN": str(time.time())}
    done = subprocess.run([sys.executable, __file__, "--inside", *arguments], capture_output=True, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def inside(path: Path, screen: str, keys: list[str], count: int) -> dict[str, float]:
    import resource

    from profkit.tui.app import ProfkitApp
    from profkit.tui.headless import settle

    began = float(os.environ["BENCH_BEGAN"])

    async def run() -> dict[str, float]:
        app = ProfkitApp(path, screen=screen)
        async with app.run_test(size=(160, 50)) as pilot:
            await pilot.pause()
            first_frame, first_cpu = time.time() - began, time.process_time()
            await settle(pilot)
            first_view = time.time() - began
            answers = [await _answer(pilot, keys[place % len(keys)]) for place in range(count)]
        ordered = sorted(answers)
        return {
            "first_frame_s": first_frame,
            "first_frame_cpu_s": first_cpu,
            "first_view_s": first_view,
            "key_median_ms": 1e3 * statistics.median(ordered),
            "key_p95_ms": 1e3 * ordered[int(0.95 * (len(ordered) - 1))],
            "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }

    return asyncio.run(run())


async def _answer(pilot: Any, key: str) -> float:
    """From a key to the screen that it changed."""
    from textual import events

    begin = time.perf_counter()
    pilot.app.post_message(events.Key(key, None))
    await pilot.pause()
    return time.perf_counter() - begin


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        where, screen, pressed, count = sys.argv[2:]
        print(json.dumps(inside(Path(where), screen, pressed.split(","), int(count))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="of each rank")
    parser.add_argument("--keys", type=int, default=40)
    args = parser.parse_args()
    folder, large = folder_of_runs(args.runs), large_run(args.ranks, args.kernels)
    what = f"{args.ranks} ranks x {args.kernels:,} kernels"
    cases: dict[str, tuple[Path, str, tuple[str, ...]]] = {
        f"{args.runs} runs, nothing cached": (folder, "", KEYS_OF_LIST),
        f"{args.runs} runs, again": (folder, "", KEYS_OF_LIST),
        f"{what}, overview": (large, "overview", KEYS_OF_LIST),
        f"{what}, timeline": (large, "timeline", KEYS_OF_TIMELINE),
    }
    for name, (path, first, keys) in cases.items():
        print(f"{name}: {_words(measure(path, first, keys, args.keys))}", flush=True)


def _words(found: dict[str, float]) -> str:
    shown = f"first frame {found['first_frame_s']:.2f} s ({found['first_frame_cpu_s']:.2f} s of processor), first view {found['first_view_s']:.2f} s"
    keys = f"a key {found['key_median_ms']:.0f} ms (95th percentile {found['key_p95_ms']:.0f} ms)"
    return f"{shown}, {keys}, {found['peak_memory_bytes'] / 1e6:.0f} MB at most"


if __name__ == "__main__":
    main()
