"""Measure what collectors cost a step outside kernel windows, next to torch.profiler.

First comes the CPU time of each collector's thread, in ms per second: 10 is 1 % of a CPU. A step
runs between two readings, so that its tensors replace the caches. Then modes alternate in blocks
of steps, as in overhead.py. `collectors` is profkit's hooks with every collector on its thread,
and a plan for kernel windows that does not cover the block. Without a driver, a fake NVML library
is read ten times per second, like the real one. Differences are to the bare block of the turn.
The collectors' share is measured twice: `collectors alone` from the pairs of each turn, and
`their threads` in one long run (beside.py).

With `--stacks`, the only collector is the sampler of stacks, which runs only if it is asked for.
`with stacks` is then the whole cost of profkit: its hooks, its writer and the sampler's thread.

    python benchmarks/collectors.py [--processes 1 [--keep-heap]] [--turns 30] [--block-ms 400]
                                    [--case convolutions] [--stacks]

Exits 1 if the threads use more than 1 % of a CPU, or certainly make a step more than 1 % longer;
with `--stacks`, if the whole cost is above 0.15 ms per step or 1 % of the step of about 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import results
import torch
from beside import Events, leave_out, noting
from block_costs import Found, add_up, compare, compare_two
from overhead import (
    Modes,
    costs_too_much,
    make_parser,
    measure_in_processes,
    run_beside,
    run_case,
)
from overhead_jobs import make_cases, train

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from profkit.collectors import nvml
from profkit.collectors import stacks as sampling
from profkit.collectors._nvml_door import Door
from profkit.collectors.base import Inside
from profkit.collectors.stacks import StackSampler
from profkit.instrument.frameworks.base import load_framework
from profkit.plugins import COLLECTORS
from profkit.run.choosing import Choice
from profkit.run.collecting import Collecting
from tests.collectors.fake_nvml import FakeGpu, FakeNvml

LIMIT_SHARE = 0.01
THREADS = "their threads"
WITH_STACKS = "with stacks"

Tell = Callable[[str], contextlib.AbstractContextManager[object]]


class CollectorModes(Modes):
    """Bare, profkit's hooks alone, the hooks with collectors, and torch.profiler."""

    def __init__(self, folder: Path, *, stacks: bool = False) -> None:
        super().__init__(folder)
        self.names = {
            "bare": self._bare,
            "profkit": self._profkit,
            "collectors": self._collectors,
            "torch.profiler": self._profiler,
        }
        self._with_writer = stacks
        collect = "stacks" if stacks else ""
        self._choice = Choice.parse(collect, "every:100000000", operators=False)

    @contextlib.contextmanager
    def _collectors(self) -> Iterator[Tell]:
        with self._profkit() as tell, self._collecting():
            yield tell

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[Collecting]:
        sink = self._job.sink
        collecting = Collecting(
            self._choice,
            self._job.recorder,
            load_framework("torch"),
            sink.appender("kernels"),
            sink.appender("samples"),
            rows=sink.rows,
        )
        collecting.start()
        yield collecting
        collecting.stop()

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[str, Events]]:
        events: Events = []
        with (
            super().watched() as others,
            self._collecting() as collecting,
            noting_waits(sampling, "look") as waits,
        ):
            pollers: Any = collecting._pollers  # noqa: SLF001
            pollers._read = noting(events, pollers._read)  # noqa: SLF001
            yield {**(others if self._with_writer else {}), THREADS: events}
        events[:] = leave_out(events, waits)


@contextlib.contextmanager
def noting_waits(module: Any, name: str) -> Iterator[Events]:
    """Give the times in which a function of a module waits for the time it was given."""
    look, waits = getattr(module, name), Events()

    def do(thread: int, due_ns: int, *rest: Any) -> Any:
        began = time.perf_counter_ns()
        if due_ns > began:
            waits.append((began, due_ns))
        return look(thread, due_ns, *rest)

    setattr(module, name, do)
    try:
        yield waits
    finally:
        setattr(module, name, look)


def stand_in_for_nvml() -> bool:
    """Use a fake NVML library if there is no driver, so that its thread does its work."""
    if not nvml.COLLECTOR.why_not():
        return False
    nvml.COLLECTOR.__init__(Door(lambda: FakeNvml(FakeGpu())))  # type: ignore[misc]
    return True


def thread_costs(reads: int = 30, *, stacks: bool = False) -> dict[str, float]:
    """Return the CPU time of each collector's thread, in ms per second."""
    rows: list[Any] = []
    case = make_cases()[0]
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    loaded, _ = COLLECTORS.load_all()
    costs = {}
    for name, collector in loaded.items():
        if not collector.why_not() and (name == "stacks") == stacks:
            if isinstance(collector, StackSampler):
                here = threading.get_ident(), "MainThread"
                collector.watch(Inside(*here, lambda: True, rows.append, rows.append))
            took = []
            for _ in range(reads):
                train(case, optimizer, 1, lambda name: contextlib.nullcontext())
                before = time.thread_time_ns()
                list(collector.read())
                took.append(time.thread_time_ns() - before)
            costs[name] = round(statistics.median(took) / 1e6 / collector.interval_s, 4)
    return costs


def main() -> int:
    parser = make_parser(__doc__, turns=30, block_ms=400.0)
    parser.add_argument("--stacks", action="store_true", help="measure the sampler of stacks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"
    faked = stand_in_for_nvml()
    runs = measure_in_processes(args, lambda: _measure(args))
    found = {case: _compare([run[case] for run in runs], stacks=args.stacks) for case in runs[0]}
    machine = f"{os.cpu_count()} cores, NVML {'faked' if faked else 'real'}"
    costs = thread_costs(stacks=args.stacks)
    told = {
        "device": machine,
        "threads_ms_per_s": costs,
        "processes": args.processes,
        "keep_heap": args.keep_heap,
        "turns": args.turns,
        "block_ms": args.block_ms,
        "cases": found,
    }
    print(json.dumps(told, indent=2))
    if args.write:
        results.write("stacks" if args.stacks else "collectors", told)
    is_over = sum(costs.values()) > 1_000 * LIMIT_SHARE
    return int(is_over or any(map(_costs_too_much, found.values())))


def _measure(args: argparse.Namespace) -> dict[str, Found]:
    """Return the result of every case in this process."""
    with tempfile.TemporaryDirectory() as folder:
        modes = CollectorModes(Path(folder) / "run", stacks=args.stacks)
        cases = [case for case in make_cases(args.device) if args.case in case.name]
        found = {
            case.name: Found(
                run_case(case, modes, args.turns, args.block_ms),
                run_beside(case, modes, args.beside_s),
            )
            for case in cases
        }
        modes.finish()
    return found


def _compare(runs: Sequence[Found], *, stacks: bool = False) -> dict[str, dict[str, float]]:
    rows = compare(*runs)
    alone = compare_two("collectors", "profkit", [run.times for run in runs])
    rows["collectors alone"] = alone | {
        "share_of_step": round(alone["over_bare_ms"] / rows["bare"]["median_ms"], 4)
    }
    if stacks:
        rows[WITH_STACKS] = add_up(rows["profkit"], rows[THREADS], rows["bare"]["median_ms"])
    return rows


def _costs_too_much(rows: dict[str, dict[str, float]]) -> bool:
    """Return true if the threads are over the limit; blocks cannot resolve one per cent."""
    if WITH_STACKS in rows:
        return costs_too_much(rows[WITH_STACKS]["over_bare_ms"], rows["bare"]["median_ms"])
    limit_ms = LIMIT_SHARE * rows["bare"]["median_ms"]
    return rows[THREADS]["over_bare_ms"] > limit_ms or rows["collectors alone"]["low_ms"] > limit_ms


if __name__ == "__main__":
    sys.exit(main())
