"""What recording costs a training step, side by side with its peers: bare, record_function, torch.profiler.

Modes take turns in short blocks of steps, on one model and in a new random order each turn, so that whatever else the
machine does hits all of them alike. For each mode: the mean difference to the bare block of its turn, with its 95 %
interval, by the wall clock and by the training thread's own processor time. Where memory happens to lie differs from
process to process, and costs a large step some 0.1 ms more or less: with several processes, one after the other, the
interval is the wider of those over all turns and over the processes' means. Most of that are page faults of a heap that
glibc trims after each large tensor and grows again; with `--keep-heap` it keeps what it has, in every mode.

  python benchmarks/overhead.py [--processes 1 [--keep-heap]] [--turns 60] [--block-ms 150] [--threads 1]

Exits 1 where profkit costs more than 0.15 ms a step, or more than 1 % of the step of about 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from torch.utils.data import DataLoader, TensorDataset

from profkit.analysis.estimate import student_95
from profkit.job import Job

LEAD_IN = 4
"""Steps at the start of a block that are not timed: the loader starts, and hooks that were just installed are cold."""
LIMIT_MS = 0.15
LIMIT_SHARE = 0.01
LONG_STEP_MS = 15.0
KEPT_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_MAX_": "0"}
FEWEST_MEANS = 3
"""Processes whose means tell how far they are apart."""


@dataclass(frozen=True)
class Case:
    """A model and its data; one call of `step` on a batch is one training step."""

    name: str
    model: torch.nn.Module
    inputs: torch.Tensor
    batch: int

    def loader(self, steps: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        count = self.batch * steps
        rows = self.inputs[torch.arange(count) % len(self.inputs)]
        return DataLoader(TensorDataset(rows, torch.zeros(count, dtype=torch.long)), batch_size=self.batch)


def make_cases(device: str = "cpu") -> list[Case]:
    torch.manual_seed(0)
    convolutions = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2),
        torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10),
    )  # fmt: skip
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    attention = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Flatten(), torch.nn.LazyLinear(10))
    tiny = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    attention(torch.zeros(2, 16, 64))
    cases = [
        Case("convolutions, about 20 ms", convolutions, torch.randn(14, 3, 112, 112), 14),
        Case("transformer, about 2 ms", attention, torch.randn(8, 16, 64), 8),
        Case("stress, below 1 ms", tiny, torch.randn(32, 128), 32),
    ]
    return [Case(case.name, case.model.to(device), case.inputs, case.batch) for case in cases]


@dataclass(frozen=True)
class Took:
    """Milliseconds a step of one block: by the wall clock, and of the training thread's processor time."""

    wall_ms: float
    processor_ms: float


def train(case: Case, optimizer: torch.optim.Optimizer, steps: int, tell: Callable[[str], contextlib.AbstractContextManager[object]]) -> Took:
    """One block of steps, after its lead-in."""
    loss_of = torch.nn.functional.cross_entropy
    start = busy = 0
    device = next(case.model.parameters()).device
    for number, batch in enumerate(case.loader(steps + LEAD_IN)):
        inputs, labels = (part.to(device) for part in batch)
        if number == LEAD_IN:
            start, busy = time.perf_counter_ns(), time.thread_time_ns()
        with tell("forward"):
            loss = loss_of(case.model(inputs), labels)
        with tell("backward"):
            loss.backward()
        with tell("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Took((time.perf_counter_ns() - start) / 1e6 / steps, (time.thread_time_ns() - busy) / 1e6 / steps)


def _nothing(name: str) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


class Modes:
    """The four ways to run a block of steps. profkit's hooks and writer are the real ones, with files."""

    def __init__(self, folder: Path) -> None:
        self._job = Job(folder)
        self._job.recorder._is_measured = lambda step: True  # noqa: SLF001  # never switched off here
        self.names: dict[str, Callable[[], contextlib.AbstractContextManager[Callable[[str], contextlib.AbstractContextManager[object]]]]] = {
            "bare": self._bare,
            "profkit": self._profkit,
            "record_function": self._record_function,
            "torch.profiler": self._profiler,
        }

    @contextlib.contextmanager
    def _bare(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        yield _nothing

    @contextlib.contextmanager
    def _profkit(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        self._job.hook("pytorch")
        yield _nothing
        self._job.unhook()
        self._job._frameworks.clear()  # noqa: SLF001  # so that the next block hooks again

    @contextlib.contextmanager
    def _record_function(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        yield torch.profiler.record_function

    @contextlib.contextmanager
    def _profiler(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            yield torch.profiler.record_function

    def finish(self) -> None:
        self._job.finish()


def run_case(case: Case, modes: Modes, turns: int, block_ms: float) -> dict[str, list[Took]]:
    """What each mode took in each turn; the first turn warms up."""
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    random = Random(0)
    times: dict[str, list[Took]] = {name: [] for name in modes.names}
    steps = max(3, round(block_ms / train(case, optimizer, 10, _nothing).wall_ms))
    for turn in range(turns + 1):
        for name in random.sample(list(modes.names), len(modes.names)):
            with modes.names[name]() as tell:
                took = train(case, optimizer, steps, tell)
            if turn:
                times[name].append(took)
    return times


Times = dict[str, list[Took]]
"""What each mode took, turn by turn."""


def compare(*runs: Times) -> dict[str, dict[str, float]]:
    """Each mode against the bare block of the same turn; each process has made a run."""
    rows = {"bare": {"median_ms": round(statistics.median(took.wall_ms for run in runs for took in run["bare"]), 4)}}
    for name in runs[0].keys() - {"bare"}:
        wall, processor = (_compare_by(clock, name, runs) for clock in ("wall_ms", "processor_ms"))
        rows[name] = wall | {f"processor_{key}": value for key, value in processor.items() if key.endswith("_ms")}
    return rows


def _compare_by(clock: str, name: str, runs: tuple[Times, ...]) -> dict[str, float]:
    times = [tuple([getattr(took, clock) for took in run[mode]] for mode in (name, "bare")) for run in runs]
    found = difference(*([value for run in times for value in run[place]] for place in (0, 1)))
    means = [difference(*run)["over_bare_ms"] for run in times]
    if len(means) < FEWEST_MEANS:
        return found
    half = student_95(len(means) - 1) * statistics.stdev(means) / math.sqrt(len(means))
    low, high = found["over_bare_ms"] - half, found["over_bare_ms"] + half
    return found | {"low_ms": round(min(low, found["low_ms"]), 4), "high_ms": round(max(high, found["high_ms"]), 4)}


def difference(values: list[float], bare: list[float]) -> dict[str, float]:
    """The mean over the middle of the differences: a block in which the machine did something else counts for no mode."""
    differences = sorted(mine - other for mine, other in zip(values, bare, strict=True))
    cut = len(differences) // 6
    kept = differences[cut : len(differences) - cut]
    mean = statistics.fmean(kept)
    half = student_95(len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    base = statistics.median(bare)
    numbers = {"median_ms": statistics.median(values), "over_bare_ms": mean, "low_ms": mean - half, "high_ms": mean + half, "ratio_to_bare": 1 + mean / base}
    return {name: round(value, 4) for name, value in numbers.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--block-ms", type=float, default=150.0)
    parser.add_argument("--case", default="", help="only those with this in their name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--processes", type=int, default=1, help="one after the other")
    parser.add_argument("--keep-heap", action="store_true", help="of several processes: no memory goes back to the system")
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.keep_heap and args.processes == 1 and not args.times:
        parser.error("--keep-heap is for several processes: a heap is set up as its process starts")
    if args.times:
        times = _measure(args)
        print(json.dumps({case: {mode: [asdict(took) for took in values] for mode, values in modes.items()} for case, modes in times.items()}))
        return 0
    runs = [_measure(args)] if args.processes == 1 else [_measure_in_process(KEPT_HEAP if args.keep_heap else {}) for _ in range(args.processes)]
    found = {case: compare(*(run[case] for run in runs)) for case in runs[0]}
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{os.cpu_count()} cores"
    print(
        json.dumps(
            {
                "machine": machine,
                "torch": torch.__version__,
                "processes": args.processes,
                "keep_heap": args.keep_heap,
                "turns": args.turns,
                "block_ms": args.block_ms,
            }
            | {"threads": args.threads, "cases": found},
            indent=2,
        )
    )
    return 1 if any(_costs_too_much(rows["profkit"]["over_bare_ms"], rows["bare"]["median_ms"]) for rows in found.values()) else 0


def _measure(args: argparse.Namespace) -> dict[str, Times]:
    """What every case took in this process."""
    torch.set_num_threads(args.threads)
    os.environ["KINETO_LOG_LEVEL"] = "5"
    with tempfile.TemporaryDirectory() as folder:
        modes = Modes(Path(folder) / "run")
        cases = [case for case in make_cases(args.device) if args.case in case.name]
        times = {case.name: run_case(case, modes, args.turns, args.block_ms) for case in cases}
        modes.finish()
    return times


def _measure_in_process(heap: dict[str, str]) -> dict[str, Times]:
    """The same in a process of its own."""
    done = subprocess.run([sys.executable, *sys.argv, "--times"], check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **heap})
    told = json.loads(done.stdout)
    return {case: {mode: [Took(**took) for took in values] for mode, values in modes.items()} for case, modes in told.items()}


def _costs_too_much(cost_ms: float, step_ms: float) -> bool:
    """Over the limit a step; the share counts for steps that are long enough for it to be the stricter of the two."""
    return cost_ms > (min(LIMIT_MS, LIMIT_SHARE * step_ms) if step_ms >= LONG_STEP_MS else LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
