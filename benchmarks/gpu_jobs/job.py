"""A training job on one GPU, with one planted fault; it knows no profiler.

    python benchmarks/gpu_jobs/job.py --model images --fault item_syncs --out FILE

It writes the length of its steps by its own clock: the time from the device's rest after the
warm-up to its rest after the last step. With `--phases` it then profiles a few more steps with
torch.profiler and writes how long the kernels of each phase took (kernel_times.py).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from models import make_model
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    "none", "item_syncs", "pageable", "slow_data", "slow_host", "layout_copies", "empty_cache",
    "loop_optimizer", "checkpoints", "evaluation", "late_sync", "late_slow", "hang",
)  # fmt: skip
PROFILED = 6
LATE = 0.6
"""Share of the steps after which a change begins."""

CYCLES_PER_S = 1_980_000_000
"""The highest clock of the GPUs that are measured here: a device that spins does so for longer."""


class Samples(Dataset[Any]):
    """Samples in memory. Each takes a worker `wait_ms` to prepare."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.count: int = args.batch * (args.warmup + args.steps + PROFILED + 4)
        self.wait_s = args.wait_ms / 1e3
        self.is_text = args.model != "images"
        shape = (args.length,) if self.is_text else (3, args.side, args.side)
        self.held = torch.randint(256, (64, *shape), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Any:
        if self.wait_s:
            time.sleep(self.wait_s)
        held = self.held[place % len(self.held)]
        if self.is_text:
            return held.long(), held.long().roll(-1)
        return held.float().div_(255), place % 10


class Job:
    """The parts of a training job, and its loop."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.inner = make_model(args.model, args.fault).to(self.device)
        self.model: Any = self._wrapped()
        options: Any = {"foreach": False, "fused": False} if args.fault == "loop_optimizer" else {}
        self.optimizer = torch.optim.AdamW(self.inner.parameters(), lr=1e-4, **options)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=args.precision == "fp16")
        self.step = 0

    def _wrapped(self) -> Any:
        args = self.args
        if args.parallel:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        if args.parallel == "ddp":
            return torch.nn.parallel.DistributedDataParallel(self.inner)
        if args.parallel == "fsdp":
            from torch.distributed.fsdp import fully_shard

            return fully_shard(self.inner)
        if args.compile:
            return torch.compile(self.inner, mode=args.compile)
        return self.inner

    def loader(self) -> DataLoader[Any]:
        args = self.args
        return DataLoader(
            Samples(args),
            batch_size=args.batch,
            num_workers=args.workers,
            pin_memory=args.fault != "pageable" and self.device.type == "cuda",
        )

    def is_late(self) -> bool:
        return bool(self.step >= self.args.warmup + LATE * self.args.steps)

    def train_step(self, batch: Any) -> None:
        args, fault = self.args, self.args.fault
        inputs, targets = (part.to(self.device, non_blocking=fault != "pageable") for part in batch)
        with record("forward"), self._precision():
            loss = self.model(inputs, targets)
        with record("backward"):
            self.scaler.scale(loss).backward()
        with record("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self._plant(loss)
        if (self.step + 1) % args.read_every == 0:
            loss.item()
        self.step += 1

    def _plant(self, loss: torch.Tensor) -> None:
        fault = self.args.fault
        if fault == "empty_cache":
            torch.cuda.empty_cache()
        elif fault == "slow_host" or (fault == "late_slow" and self.is_late()):
            time.sleep(self.args.late_ms / 1e3)
        elif fault == "late_sync" and self.is_late():
            for parameter in list(self.inner.parameters())[:20]:
                parameter.detach().norm().item()
        elif fault == "checkpoints" and self.step % 20 == 19:
            torch.save(self.inner.state_dict(), f"{self.args.out}.pt")
        elif fault == "hang" and self.step == self.args.warmup + self.args.steps // 2:
            cycles = int(self.args.spin_s * CYCLES_PER_S)
            torch.cuda._sleep(cycles)  # noqa: SLF001  # torch has no public spin
            loss.item()

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if self.args.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, kinds[self.args.precision])

    def evaluate(self, batch: Any) -> None:
        self.model.eval()
        inputs, targets = (part.to(self.device) for part in batch)
        with torch.no_grad(), self._precision():
            for _ in range(4):
                self.model(inputs, targets).item()
        self.model.train()

    def train(self, turn: Turn) -> dict[str, float]:
        """Return the mean length of the measured steps, and how many there were."""
        args = self.args
        began = 0
        batches = iter(self.loader())
        if not args.compile:
            turn.take()
        for number in range(args.warmup + args.steps):
            batch = next(batches)
            if number == args.warmup:
                if args.compile:
                    turn.take()  # compiling takes no device
                self.rest()
                began = time.perf_counter_ns()
            self.train_step(batch)
            if args.fault == "evaluation" and number % 20 == 19:
                self.evaluate(batch)
        self.rest()
        took_ms = (time.perf_counter_ns() - began) / 1e6
        found = {"step_ms": took_ms / args.steps, "steps": float(args.steps)}
        if args.phases:
            from kernel_times import measure

            found |= measure(self, batches, PROFILED)
        turn.give()
        return found

    def rest(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def record(name: str) -> contextlib.AbstractContextManager[Any]:
    """Name a phase for torch.profiler where it runs; else do nothing."""
    if torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001
        return torch.profiler.record_function(name)
    return contextlib.nullcontext()


class Turn:
    """The right to use the device, which one job has at a time."""

    def __init__(self, path: str | None) -> None:
        self._descriptor = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT)

    def take(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def give(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("images", "text", "small"), default="images")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--compile", help="a mode of torch.compile")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--read-every", type=int, default=10)
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--late-ms", type=float, default=15.0)
    parser.add_argument("--spin-s", type=float, default=18.0, help="how long a hang lasts")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    found = Job(args).train(Turn(os.environ.get("GPU_LOCK")))
    if args.parallel:
        dist.destroy_process_group()
    Path(args.out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
