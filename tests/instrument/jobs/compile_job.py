"""A small job of `torch.compile` with one planted fault; it knows no profiler.

    python compile_job.py --fault shapes --out FILE

It writes the lengths of its steps by its own clock, and what torch counts of its compilations.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

FAULTS = (
    "none", "shapes", "integer", "attribute", "global", "print", "item", "late branch", "one rank",
)  # fmt: skip
SCALE = 1.0


class Net(nn.Module):
    """Layers, and the places at which faults are planted."""

    def __init__(self, fault: str, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
        self.fault = fault
        self.level = 0
        self.branch = False

    def forward(self, x: torch.Tensor, number: int = 0) -> torch.Tensor:
        x = self.layers(x)
        if self.fault == "print":
            print(end="")
        if self.fault == "item" and x.sum().item() > 1e9:
            x = x + 1
        if self.branch:
            x = torch.tanh(x) * 2
        return x * (1 + self.level) * SCALE + number


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """The rows of a tensor."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.rows[place]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--fault", choices=FAULTS, default="none")
    options.add_argument("--backend", default="aot_eager")
    options.add_argument("--steps", type=int, default=120)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--out", type=Path, required=True)
    train(options.parse_args())


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = 0
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    net = Net(args.fault, args.width)
    model = torch.compile(net, backend=args.backend, dynamic=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    data: Any = torch.utils.data.DataLoader(
        Rows(torch.randn(args.steps * args.batch, args.width)), batch_size=args.batch
    )
    lengths, before = [], time.perf_counter()
    for step, loaded in enumerate(data):
        batch, number = plant(net, args.fault, step, loaded, rank)
        optimizer.zero_grad()
        model(batch, number).square().mean().backward()
        if dist.is_initialized():
            for each in net.parameters():
                if each.grad is not None:
                    dist.all_reduce(each.grad)
        optimizer.step()
        now = time.perf_counter()
        lengths.append(now - before)
        before = now
    write(args.out, rank, lengths)
    if dist.is_initialized():
        dist.destroy_process_group()


def plant(
    net: Net, fault: str, step: int, batch: torch.Tensor, rank: int
) -> tuple[torch.Tensor, int]:
    """Change what the compiler's guards check, at a few later steps."""
    global SCALE  # noqa: PLW0603  # a guard of a global is one of the faults
    is_due = step >= 30 and step % 20 == 10
    if fault == "shapes" and is_due:
        batch = batch[: len(batch) - step // 20]
    if fault == "one rank" and is_due and rank == 1:
        batch = batch[: len(batch) - step // 20]
    if fault == "attribute" and is_due:
        net.level += 1
    if fault == "global" and is_due:
        SCALE += 1.0
    if fault == "late branch" and step == 60:
        net.branch = True
    return batch, step // 20 if fault == "integer" else 0


def write(out: Path, rank: int, lengths: list[float]) -> None:
    """Write the lengths of the steps, and what torch counts: seconds of whole frames."""
    from torch._dynamo.utils import (
        compilation_time_metrics,
        counters,
        get_compilation_metrics,
    )

    whole = [
        sum(seconds)
        for name, seconds in compilation_time_metrics.items()
        if name in {"_compile.compile_inner", "_compile.<locals>.compile_inner"}
    ]
    backward = compilation_time_metrics.get("backward._backward_impl", [])
    found = {
        "lengths_s": lengths,
        "torch_s": sum(whole) + sum(backward),
        "metrics": {name: sum(seconds) for name, seconds in compilation_time_metrics.items()},
        "graph_breaks": sum(counters["graph_break"].values()),
        "functions": [
            (getattr(each, "co_name", None), getattr(each, "guard_count", None))
            for each in get_compilation_metrics()
        ],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(f".{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
