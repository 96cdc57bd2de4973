"""What collectors cost a training step outside kernel windows, beside torch.profiler left on.

First what each collector's thread uses of a processor, in ms a second: 10 would be 1 % of one. Then, as in overhead.py, modes take turns in short blocks of steps, in one process on one model. `collectors` is profkit's hooks
with every collector that works here on its thread and a plan for kernel windows that does not cover the block; without a
driver, NVML is asked of a fake library, ten times a second as the real one. Differences are to the bare block of the turn;
`collectors alone` is what collectors and windows add to profkit's hooks, by the pairs of each turn.

  python benchmarks/collectors.py [--turns 30] [--block-ms 400] [--case convolutions]

Exits 1 where the threads use more than 1 % of a processor, or where they surely make a step more than 1 % longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from overhead import Case, Modes, compare, difference, make_cases, run_case

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from profkit.collecting import Choice, Collecting
from profkit.collectors import nvml
from profkit.collectors._nvml_door import Door
from profkit.instrument.frameworks._base import load_framework
from profkit.plugins import COLLECTORS
from tests.collectors.fake_nvml import FakeGpu, FakeNvml

LIMIT_SHARE = 0.01

Tell = Callable[[str], contextlib.AbstractContextManager[object]]


class CollectorModes(Modes):
    """Bare, profkit's hooks alone, the hooks with collectors, and torch.profiler."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = {"bare": self._bare, "profkit": self._profkit, "collectors": self._collectors, "torch.profiler": self._profiler}
        self._choice = Choice.parse("", "every:100000000", operators=False)

    @contextlib.contextmanager
    def _collectors(self) -> Iterator[Tell]:
        sink = self._job.sink
        with self._profkit() as tell:
            collecting = Collecting(self._choice, self._job.recorder, load_framework("torch"), sink.appender("kernels"), sink.appender("samples"))
            collecting.start()
            yield tell
            collecting.stop()


def stand_in_for_nvml() -> bool:
    """Where there is no driver, ask a fake library, so that the thread does what it does on a machine with one."""
    if not nvml.COLLECTOR.why_not():
        return False
    nvml.COLLECTOR.__init__(Door(lambda: FakeNvml(FakeGpu())))  # type: ignore[misc]
    return True


def thread_costs(reads: int = 50) -> dict[str, float]:
    """What each collector's thread uses of a processor, in ms a second."""
    loaded, _ = COLLECTORS.load_all()
    costs = {}
    for name, collector in loaded.items():
        if not collector.why_not():
            list(collector.read())
            before = time.thread_time_ns()
            for _ in range(reads):
                list(collector.read())
            costs[name] = round((time.thread_time_ns() - before) / 1e6 / reads / collector.interval_s, 4)
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--block-ms", type=float, default=400.0)
    parser.add_argument("--case", default="", help="only those with this in their name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["KINETO_LOG_LEVEL"] = "99"
    faked = stand_in_for_nvml()
    with tempfile.TemporaryDirectory() as folder:
        modes = CollectorModes(Path(folder) / "run")
        found = {case.name: measure(case, modes, args.turns, args.block_ms) for case in make_cases() if args.case in case.name}
        modes.finish()
    machine = f"{os.cpu_count()} cores, NVML {'faked' if faked else 'real'}"
    costs = thread_costs()
    print(
        json.dumps(
            {"machine": machine, "threads_ms_per_s": costs, "torch": torch.__version__, "turns": args.turns, "block_ms": args.block_ms, "cases": found},
            indent=2,
        )
    )
    return 1 if sum(costs.values()) > 1_000 * LIMIT_SHARE or any(_costs_too_much(rows) for rows in found.values()) else 0


def measure(case: Case, modes: Modes, turns: int, block_ms: float) -> dict[str, dict[str, float]]:
    times = run_case(case, modes, turns, block_ms)
    collectors, hooks = ([took.wall_ms for took in times[name]] for name in ("collectors", "profkit"))
    rows = compare(times)
    alone = difference(collectors, hooks)
    rows["collectors alone"] = alone | {"share_of_step": round(alone["over_bare_ms"] / rows["bare"]["median_ms"], 4)}
    return rows


def _costs_too_much(rows: dict[str, dict[str, float]]) -> bool:
    return rows["collectors alone"]["low_ms"] > LIMIT_SHARE * rows["bare"]["median_ms"]


if __name__ == "__main__":
    sys.exit(main())
