"""Measure how soon the terminal interface shows something, and how soon it answers a key.

    python benchmarks/tui.py [--runs 100] [--ranks 32] [--kernels 1000000] [--keys 40]

Limits: 1 s to the first frame of a folder of runs, 1.5 s and 1.5 GB for a run of many ranks and
kernels, and 100 ms for a key (median and 95th percentile). Textual's pilot runs the whole program
without a terminal. Runs are generated into a cache and kept there. Prints one JSON object,
which `--write` writes to docs/results/tui.json; exits 1 above a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import results
from processes import bytecode_in

from profkit.cache import cache_root
from profkit.testing import synthetic_trace

STEPS = 100
FOLDER_LIMIT_S, RUN_LIMIT_S = 1.0, 1.5
KEY_LIMIT_MS = 100.0
MEMORY_LIMIT_BYTES = 1.5e9
KEYS_OF_LIST = ("down", "up", "pagedown", "pageup", "comma", "full_stop")
KEYS_OF_TIMELINE = ("right", "left", "plus", "minus", "right_square_bracket", "left_square_bracket")


def folder_of_runs(count: int) -> Path:
    folder = cache_root() / "bench-tui" / f"runs-{count}"
    for number in range(count):
        if not (folder / f"run-{number:03d}").exists():
            synthetic_trace(
                folder / f"run-{number:03d}", ranks=1 + number % 2, steps=STEPS, seed=number
            )
    return folder


def large_run(ranks: int, kernels: int) -> Path:
    run = cache_root() / "bench-tui" / f"{ranks}x{kernels}"
    if not run.exists():
        synthetic_trace(
            run, ranks=ranks, steps=STEPS, kernels_per_step=max(1, kernels // STEPS), device="cuda"
        )
    return run


def measure(
    path: Path, screen: str, keys: tuple[str, ...], count: int, cache: Path
) -> dict[str, float]:
    """Measure first frame, first view, answers to keys and peak memory of a new process."""
    arguments = [str(path), screen, ",".join(keys), str(count)]
    environment = {
        **bytecode_in(cache_root() / "bench-tui" / "bytecode"),
        "PROFKIT_CACHE": str(cache),
        "BENCH_BEGAN": str(time.time()),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--inside", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def inside(path: Path, screen: str, keys: list[str], count: int) -> dict[str, float]:
    import resource

    from profkit.tui.app import ProfkitApp
    from profkit.tui.headless import settle

    began = float(os.environ["BENCH_BEGAN"])

    painted: list[float] = []

    class Timed(ProfkitApp):
        def _display(self, *painting: Any) -> None:
            super()._display(*painting)
            painted.append(time.perf_counter())

    async def run() -> dict[str, float]:
        app = Timed(path, screen=screen)
        gc.freeze()  # as the verb does
        async with app.run_test(size=(160, 50)) as pilot:
            while not _shows_something(app.screen):
                await pilot.pause(0.005)
            first_frame, first_cpu = time.time() - began, time.process_time()
            await settle(pilot)
            first_view = time.time() - began
            answers = [
                await _answer(pilot, keys[place % len(keys)], painted) for place in range(count)
            ]
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


def _shows_something(screen: Any) -> bool:
    """Return true if the list has its rows, or the screen its view."""
    from profkit.tui.screens.runs import RunsScreen

    return (
        bool(screen.table.count)
        if isinstance(screen, RunsScreen)
        else getattr(screen, "view", None) is not None
    )


async def _answer(pilot: Any, key: str, painted: list[float]) -> float:
    """Return the time from a key to the next painted screen.

    The pilot returns later, because it waits until the process is idle.
    """
    from textual import events

    painted.clear()
    begin = time.perf_counter()
    pilot.app.post_message(events.Key(key, None))
    await pilot.pause()
    return min(painted, default=time.perf_counter()) - begin


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        where, screen, pressed, count = sys.argv[2:]
        print(json.dumps(inside(Path(where), screen, pressed.split(","), int(count))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--kernels", type=int, default=1_000_000, help="of each rank")
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    folder, large = folder_of_runs(args.runs), large_run(args.ranks, args.kernels)
    what = f"{args.ranks} ranks x {args.kernels:,} kernels"
    cases: dict[str, tuple[Path, str, tuple[str, ...], float]] = {
        f"{args.runs} runs, nothing cached": (folder, "", KEYS_OF_LIST, FOLDER_LIMIT_S),
        f"{args.runs} runs, again": (folder, "", KEYS_OF_LIST, FOLDER_LIMIT_S),
        f"{what}, overview": (large, "overview", KEYS_OF_LIST, RUN_LIMIT_S),
        f"{what}, timeline": (large, "timeline", KEYS_OF_TIMELINE, RUN_LIMIT_S),
    }
    with tempfile.TemporaryDirectory() as scratch:
        measure(
            folder, "", KEYS_OF_LIST, 1, Path(scratch) / "warm-up"
        )  # leaves the bytecode that an installed program has
        cache = Path(scratch) / "cache"
        found = {
            name: measure(path, first, keys, args.keys, cache) | {"first_frame_limit_s": limit}
            for name, (path, first, keys, limit) in cases.items()
        }
    print(json.dumps({"keys": args.keys, "cases": found}, indent=2))
    if args.write:
        results.write("tui", {"keys": args.keys, "cases": found})
    return 0 if all(map(_within_limits, found.values())) else 1


def _within_limits(case: dict[str, float]) -> bool:
    is_quick = (
        case["first_frame_s"] <= case["first_frame_limit_s"] and case["key_p95_ms"] <= KEY_LIMIT_MS
    )
    return is_quick and case["peak_memory_bytes"] <= MEMORY_LIMIT_BYTES


if __name__ == "__main__":
    sys.exit(main())
