"""What recording costs a training step, side by side with its peers: bare, record_function, torch.profiler.

Modes take turns in short blocks of steps, in one process on one model, so that whatever else the
machine does hits all of them. For each mode: the mean difference to the bare blocks around it, with
its 95 % interval over the blocks.

  python benchmarks/overhead.py [--blocks 12] [--steps 12] [--threads 1]

Exits 1 where profkit costs more than 0.15 ms a step, or more than 1 % of the step of about 20 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from profkit.analysis.estimate import student_95
from profkit.job import Job

LIMIT_MS = 0.15
LIMIT_SHARE = 0.01


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
        Case("convolutions, about 20 ms", convolutions, torch.randn(8, 3, 112, 112), 8),
        Case("transformer, about 2 ms", attention, torch.randn(8, 16, 64), 8),
        Case("stress, below 1 ms", tiny, torch.randn(32, 128), 32),
    ]
    return [Case(case.name, case.model.to(device), case.inputs, case.batch) for case in cases]


def train(case: Case, optimizer: torch.optim.Optimizer, steps: int, tell: Callable[[str], contextlib.AbstractContextManager[object]]) -> float:
    """Milliseconds a step of one block of steps, the loader's start left out."""
    loss_of = torch.nn.functional.cross_entropy
    start = 0
    device = next(case.model.parameters()).device
    for number, batch in enumerate(case.loader(steps + 1)):
        inputs, labels = (part.to(device) for part in batch)
        if number == 1:
            start = time.perf_counter_ns()
        with tell("forward"):
            loss = loss_of(case.model(inputs), labels)
        with tell("backward"):
            loss.backward()
        with tell("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e6 / steps


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


def run_case(case: Case, modes: Modes, blocks: int, steps: int) -> dict[str, list[float]]:
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
    times: dict[str, list[float]] = {name: [] for name in modes.names}
    for turn in range(blocks + 1):
        for name, mode in modes.names.items():
            with mode() as tell:
                took = train(case, optimizer, steps, tell)
            if turn:
                times[name].append(took)
    return times


def compare(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Each mode against the bare block of the same turn."""
    bare = times["bare"]
    rows = {"bare": {"median_ms": round(statistics.median(bare), 4)}}
    for name, values in times.items():
        if name != "bare":
            rows[name] = _difference(values, bare)
    return rows


def _difference(values: list[float], bare: list[float]) -> dict[str, float]:
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
    parser.add_argument("--blocks", type=int, default=18)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        modes = Modes(Path(folder) / "run")
        found = {case.name: compare(run_case(case, modes, args.blocks, args.steps)) for case in make_cases(args.device)}
        modes.finish()
    machine = torch.cuda.get_device_name() if args.device == "cuda" else f"{os.cpu_count()} cores"
    print(
        json.dumps(
            {"machine": machine, "torch": torch.__version__, "steps": args.steps, "blocks": args.blocks, "threads": args.threads, "cases": found}, indent=2
        )
    )
    long = found["convolutions, about 20 ms"]
    too_slow = [name for name, rows in found.items() if rows["profkit"]["over_bare_ms"] > LIMIT_MS]
    return 1 if too_slow or long["profkit"]["over_bare_ms"] > LIMIT_SHARE * long["bare"]["median_ms"] else 0


if __name__ == "__main__":
    sys.exit(main())
