"""Measure what recording costs a step, next to record_function and torch.profiler.

Modes alternate in short blocks of steps, on one model and in a new random order each turn, so
that disturbances affect all of them. The result of each mode is the mean difference to the bare
block of its turn with its 95 % interval, in wall time and in the training thread's CPU time.
Memory addresses differ between processes and move large steps by about 0.1 ms. With several
processes, the interval is the wider of those over all turns and over the processes' means. Most
of that effect are page faults of a heap that glibc trims after each large tensor. With `--keep-
heap` it keeps its memory in every mode.

profkit's writer writes twice per second, too rarely for short blocks. It finishes between blocks,
and one long run measures its cost (beside.py). `profkit` is the sum of both.

    python benchmarks/overhead.py [--processes 1 [--keep-heap]] [--turns 60] [--block-ms 150]
                                  [--threads 1]

Exits 1 if profkit costs more than 0.15 ms per step, or more than 1 % of the step of about 20 ms,
for the mean.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from beside import FEWEST_MEANS, Added, Events, added, noting, pool
from torch.utils.data import DataLoader, TensorDataset

from profkit.analysis.estimate import student_95
from profkit.run.collecting import COLLECT, NOTHING
from profkit.run.job import Job

LEAD_IN = 4
"""Untimed steps at the start of a block, while the loader starts and new hooks are cold."""
LIMIT_MS = 0.15
LIMIT_SHARE = 0.01
LONG_STEP_MS = 15.0
KEPT_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_MAX_": "0"}
BESIDE_S = 15.0
"""Length of the run of steps that measures the cost of threads next to it."""
FEWEST_TURNS = 2
WRITER = "its writer"


@dataclass(frozen=True)
class Case:
    """A model and its data. One call of `step` on a batch is one training step."""

    name: str
    model: torch.nn.Module
    inputs: torch.Tensor
    batch: int

    def loader(self, steps: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        count = self.batch * steps
        rows = self.inputs[torch.arange(count) % len(self.inputs)]
        return DataLoader(
            TensorDataset(rows, torch.zeros(count, dtype=torch.long)), batch_size=self.batch
        )


def make_cases(device: str = "cpu") -> list[Case]:
    torch.manual_seed(0)
    convolutions = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    attention = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    )
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
    """Milliseconds per step of one block: wall time, and CPU time of the training thread."""

    wall_ms: float
    processor_ms: float


def train(
    case: Case,
    optimizer: torch.optim.Optimizer,
    steps: int,
    tell: Callable[[str], contextlib.AbstractContextManager[object]],
    ends: list[int] | None = None,
) -> Took:
    """Train one block of steps after its lead-in, and append their ends to `ends`."""
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
        if ends is not None and number >= LEAD_IN:
            ends.append(time.perf_counter_ns())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Took(
        (time.perf_counter_ns() - start) / 1e6 / steps, (time.thread_time_ns() - busy) / 1e6 / steps
    )


def _nothing(name: str) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


class Modes:
    """The four ways to run a block of steps.

    profkit's hooks and writer are the real ones, with files, but without collectors.
    """

    def __init__(self, folder: Path) -> None:
        os.environ[COLLECT] = NOTHING  # the job's own would run beside every mode
        self._job = Job(folder)
        # Every step is recorded here, without control steps.
        self._job.recorder._is_measured = lambda step: True  # noqa: SLF001
        self.names: dict[
            str,
            Callable[
                [],
                contextlib.AbstractContextManager[
                    Callable[[str], contextlib.AbstractContextManager[object]]
                ],
            ],
        ] = {
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
        while any(
            self._job.sink.rows.values()
        ):  # else the writer would write them beside another mode
            time.sleep(0.01)

    @contextlib.contextmanager
    def _record_function(
        self,
    ) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        yield torch.profiler.record_function

    @contextlib.contextmanager
    def _profiler(self) -> Iterator[Callable[[str], contextlib.AbstractContextManager[object]]]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            yield torch.profiler.record_function

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[str, Events]]:
        """Yield profkit's hooks, and the times at which its threads work."""
        with self._profkit():
            writer: Any = self._job.sink._writer  # noqa: SLF001
            events: Events = []
            writer._flush = noting(events, writer._flush)  # noqa: SLF001
            yield {WRITER: events}
            del writer._flush  # noqa: SLF001

    def finish(self) -> None:
        self._job.finish()


def run_case(case: Case, modes: Modes, turns: int, block_ms: float) -> dict[str, list[Took]]:
    """Return the times of each mode in each turn. The first turn warms up."""
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


def run_beside(case: Case, modes: Modes) -> dict[str, Added]:
    """Return how much each of profkit's threads adds to a step."""
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    blocks: list[list[int]] = []
    with modes.watched() as events:
        until = time.perf_counter_ns() + int(BESIDE_S * 1e9)
        while time.perf_counter_ns() < until:
            blocks.append([])
            train(case, optimizer, 100, _nothing, blocks[-1])
    return {name: added(blocks, found) for name, found in events.items()}


Times = dict[str, list[Took]]
"""The times of each mode, turn by turn."""


@dataclass(frozen=True)
class Found:
    """The result of one case in one process."""

    times: Times
    beside: dict[str, Added]

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Found:
        times = {mode: [Took(**took) for took in values] for mode, values in told["times"].items()}
        return cls(times, {name: Added(**each) for name, each in told["beside"].items()})


def compare(*found: Found) -> dict[str, dict[str, float]]:
    """Return each mode compared with the bare block of its turn, and the cost of threads."""
    runs = [each.times for each in found]
    rows = {
        "bare": {
            "median_ms": round(
                statistics.median(took.wall_ms for run in runs for took in run["bare"]), 4
            )
        }
    }
    for name in runs[0].keys() - {"bare"}:
        wall, processor = (
            compare_two(name, "bare", runs, clock) for clock in ("wall_ms", "processor_ms")
        )
        rows[name] = wall | {
            f"processor_{key}": value for key, value in processor.items() if key.endswith("_ms")
        }
    for name in found[0].beside:
        rows[name] = _as_row(pool([each.beside[name] for each in found]))
    if WRITER in rows:
        rows["profkit"] = add_up(rows["profkit"], rows[WRITER], rows["bare"]["median_ms"])
    return rows


def _as_row(cost: Added) -> dict[str, float]:
    numbers = {
        "over_bare_ms": cost.mean_ms,
        "low_ms": cost.mean_ms - cost.half_ms,
        "high_ms": cost.mean_ms + cost.half_ms,
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def add_up(hooks: dict[str, float], writer: dict[str, float], bare_ms: float) -> dict[str, float]:
    """Return the sum of two independent measurements."""
    mean = hooks["over_bare_ms"] + writer["over_bare_ms"]
    half = math.hypot(*((row["high_ms"] - row["low_ms"]) / 2 for row in (hooks, writer)))
    return hooks | {
        name: round(value, 4)
        for name, value in {
            "over_bare_ms": mean,
            "low_ms": mean - half,
            "high_ms": mean + half,
            "ratio_to_bare": 1 + mean / bare_ms,
        }.items()
    }


def compare_two(
    name: str, base: str, runs: Sequence[Times], clock: str = "wall_ms"
) -> dict[str, float]:
    """Return one mode compared with another of the same turn."""
    times = [
        tuple([getattr(took, clock) for took in run[mode]] for mode in (name, base)) for run in runs
    ]
    found = difference(*([value for run in times for value in run[place]] for place in (0, 1)))
    means = [difference(*run)["over_bare_ms"] for run in times]
    if len(means) < FEWEST_MEANS:
        return found
    half = student_95(len(means) - 1) * statistics.stdev(means) / math.sqrt(len(means))
    low, high = found["over_bare_ms"] - half, found["over_bare_ms"] + half
    return found | {
        "low_ms": round(min(low, found["low_ms"]), 4),
        "high_ms": round(max(high, found["high_ms"]), 4),
    }


def difference(values: list[float], bare: list[float]) -> dict[str, float]:
    """Return the mean over the middle of the differences.

    Blocks in which the machine did something else lie outside the middle.
    """
    differences = sorted(mine - other for mine, other in zip(values, bare, strict=True))
    cut = len(differences) // 6
    kept = differences[cut : len(differences) - cut]
    mean = statistics.fmean(kept)
    half = student_95(len(kept) - 1) * statistics.stdev(kept) / math.sqrt(len(kept))
    base = statistics.median(bare)
    numbers = {
        "median_ms": statistics.median(values),
        "over_bare_ms": mean,
        "low_ms": mean - half,
        "high_ms": mean + half,
        "ratio_to_bare": 1 + mean / base,
    }
    return {name: round(value, 4) for name, value in numbers.items()}


def main() -> int:
    parser = make_parser(__doc__, turns=60, block_ms=150.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    runs = measure_in_processes(args, lambda: _measure(args))
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
    return (
        1
        if any(
            costs_too_much(rows["profkit"]["over_bare_ms"], rows["bare"]["median_ms"])
            for rows in found.values()
        )
        else 0
    )


def make_parser(what: str | None, *, turns: int, block_ms: float) -> argparse.ArgumentParser:
    """Return the options of a benchmark whose modes alternate."""
    parser = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=_turns, default=turns)
    parser.add_argument("--block-ms", type=float, default=block_ms)
    parser.add_argument("--case", default="", help="only those with this in their name")
    parser.add_argument("--processes", type=int, default=1, help="one after the other")
    parser.add_argument(
        "--keep-heap",
        action="store_true",
        help="of several processes: no memory goes back to the system",
    )
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    return parser


def _turns(word: str) -> int:
    if (turns := int(word)) < FEWEST_TURNS:
        raise argparse.ArgumentTypeError(f"{turns} tell no interval; give {FEWEST_TURNS} or more")
    return turns


def measure_in_processes(
    args: argparse.Namespace, measure: Callable[[], dict[str, Found]]
) -> list[dict[str, Found]]:
    """Return the result of every case in each process.

    A process that was started for its times prints them and ends here.
    """
    if args.times:
        print(json.dumps({case: asdict(found) for case, found in measure().items()}))
        sys.exit(0)
    if args.processes > 1:
        return [
            _measure_in_process(KEPT_HEAP if args.keep_heap else {}) for _ in range(args.processes)
        ]
    if args.keep_heap:
        sys.exit(
            "--keep-heap is for several processes: a heap is set up as its process starts; add "
            "--processes 4"
        )
    return [measure()]


def _measure(args: argparse.Namespace) -> dict[str, Found]:
    """Return the result of every case in this process."""
    torch.set_num_threads(args.threads)
    os.environ["KINETO_LOG_LEVEL"] = "5"
    with tempfile.TemporaryDirectory() as folder:
        modes = Modes(Path(folder) / "run")
        cases = [case for case in make_cases(args.device) if args.case in case.name]
        found = {
            case.name: Found(
                run_case(case, modes, args.turns, args.block_ms), run_beside(case, modes)
            )
            for case in cases
        }
        modes.finish()
    return found


def _measure_in_process(heap: dict[str, str]) -> dict[str, Found]:
    """Return the result of every case in a new process."""
    done = subprocess.run(
        [sys.executable, *sys.argv, "--times"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **heap},
    )
    return {case: Found.from_json(told) for case, told in json.loads(done.stdout).items()}


def costs_too_much(cost_ms: float, step_ms: float) -> bool:
    """Return true if a case is over the limit per step, or over the share for long steps."""
    return cost_ms > (min(LIMIT_MS, LIMIT_SHARE * step_ms) if step_ms >= LONG_STEP_MS else LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
