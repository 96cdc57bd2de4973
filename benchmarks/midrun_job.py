"""A small training job with a planted change in the middle; it knows no profiler.

    python benchmarks/midrun_job.py --change forward --at 160 --steps 330
    torchrun --nproc-per-node 2 benchmarks/midrun_job.py --change late

Sleeps stand for most of the work, so that a machine with few cores has the same truth.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import midrun_job_parts as parts
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

CHANGES = (
    "none", "forward", "backward", "input", "workers", "optimizer", "outside", "clipping",
    "checkpoint", "evaluation", "lock", "garbage", "drift", "batch", "hogs", "late", "exchange",
    "calls", "flush", "burst", "quicker", "hook", "average", "mask", "dump", "unfused",
)  # fmt: skip
WIDTH, BATCH, LARGER_BATCH = 128, 16, 26
BURST_STEPS = 40
SAVE_EVERY, TEST_EVERY, FLUSH_EVERY = 8, 10, 20
KEPT_OBJECTS, AVERAGES = 60_000, 3
HOG = "while True: pass"


def work(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


class Plan:
    """The step that is under way, and the change."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.change, self.at, self.steps = args.change, args.at, args.steps
        self.base_s, self.extra_s = args.sleep_ms / 1e3, args.extra_ms / 1e3
        self.rank = int(os.environ.get("RANK", "0"))
        self.step = 0
        self.is_uneven = args.uneven

    def is_on(self, change: str) -> bool:
        return bool(change == self.change and self.step >= self.at)

    def extra(self, change: str) -> float:
        return self.extra_s if self.is_on(change) else 0.0


class Sleep(torch.autograd.Function):
    """Takes time in the backward."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        context.plan = plan
        return x * 1

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        work(context.plan.base_s)
        work(context.plan.extra("backward"))
        return gradients[0], None


class Net(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.plan = plan
        self.seen: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.plan
        if plan.is_on("quicker"):
            work(plan.base_s - plan.extra_s)
        else:
            work(plan.base_s * len(x) / BATCH)
        work(plan.extra("forward"))
        if plan.is_on("burst") and plan.step < plan.at + BURST_STEPS:
            work(plan.extra_s)
        if plan.is_on("late") and plan.rank == 1:
            work(plan.extra_s)
        if plan.is_on("drift"):
            work(2 * plan.extra_s * (plan.step - plan.at) / (plan.steps - plan.at))
        found: torch.Tensor = Sleep.apply(self.layers(x), plan)
        return found


class Batches(IterableDataset):  # type: ignore[type-arg]  # of tensors
    """Samples in order; a worker counts the steps itself."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[torch.Tensor]:
        plan = self.plan
        for step in range(plan.steps):
            is_later = step >= plan.at
            batch = LARGER_BATCH if is_later and plan.change == "batch" else BATCH
            for number in range(batch):
                if number == 0 and plan.change == "workers":
                    work(2 * plan.base_s + is_later * 2 * plan.extra_s)
                if number == 0 and plan.change == "input":
                    work(is_later * plan.extra_s)
                yield torch.randn(WIDTH)


class Sizes:
    """Batch sizes by step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.plan.steps):
            is_larger = step >= self.plan.at and self.plan.change == "batch"
            yield list(range(LARGER_BATCH if is_larger else BATCH))


class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]  # of tensors
    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(WIDTH)

    def __len__(self) -> int:
        return LARGER_BATCH


class Update(torch.optim.SGD):
    """An optimizer of the job's own."""

    plan: Plan

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        work(self.plan.extra("optimizer"))
        super().step()


def delayed_hook(plan: Plan, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """All-reduce that one rank enters late."""
    if plan.is_on("exchange") and plan.rank == 1:
        work(plan.extra_s)
    done = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0] / distributed.get_world_size())


delayed_hook.__annotations__.clear()  # DDP takes types there, and these are strings


def spin() -> None:
    count = 0
    while True:
        count += len(json.dumps({"count": count}))


class Graph:
    """An object with a cycle, for the garbage collector."""

    def __init__(self) -> None:
        self.me = [self]


class Around:
    """What happens in the loop next to the steps."""

    def __init__(self, plan: Plan, net: Net, optimizer: Update) -> None:
        self.plan, self.net, self.optimizer = plan, net, optimizer
        self.hogs: list[subprocess.Popen[bytes]] = []
        self.state = {"net": net.state_dict(), "more": [float(each) for each in range(20_000)]}
        self.kept: list[Graph] = []

    def begin(self) -> None:
        """Begin the change, before its first step."""
        change = self.plan.change
        if change == "lock":
            threading.Thread(target=spin, daemon=True).start()
        elif change == "unfused":
            for group in self.optimizer.param_groups:
                group["foreach"] = False
        elif change == "garbage":
            self.kept = [Graph() for _ in range(KEPT_OBJECTS)]
        elif change == "hogs":
            for _ in range(2 * (os.cpu_count() or 1)):
                self.hogs.append(subprocess.Popen([sys.executable, "-c", HOG]))

    def end(self) -> None:
        for hog in self.hogs:
            hog.kill()
            hog.wait()

    def after(self, batch: torch.Tensor) -> None:
        """Collect, save, test and flush."""
        plan, net, later = self.plan, self.net, self.plan.step - self.plan.at
        if self.kept:
            gc.collect()
        if plan.is_on("checkpoint") and later % SAVE_EVERY == 0:
            state = {"net": net.state_dict(), "more": torch.zeros(2_000_000)}
            for _ in range(4):
                torch.save(state, io.BytesIO())
        if plan.is_on("dump") and later % SAVE_EVERY == 0:
            parts.dump(self.state, 80)
        if plan.is_on("evaluation") and later % TEST_EVERY == 0:
            net.eval()
            with torch.no_grad():
                for _ in range(6):
                    net(batch)
            net.train()
        if plan.is_on("flush") and later % FLUSH_EVERY == 0:
            work(10 * plan.extra_s)


def train(plan: Plan, model: nn.Module, net: Net, optimizer: Update, loader: Any) -> None:
    around = Around(plan, net, optimizer)
    for batch in loader:
        if plan.step == plan.at:
            around.begin()
        if plan.is_uneven:
            parts.begin_unevenly(plan.step)
        inputs = batch
        if plan.change == "mask":
            inputs = batch * parts.make_mask(batch, plan.extra("mask"))
        optimizer.zero_grad(set_to_none=plan.change != "unfused")
        model(inputs).square().mean().backward()
        if plan.is_on("calls"):
            model(batch).square().mean().backward()
        work(plan.extra("clipping"))
        optimizer.step()
        work(plan.extra("outside"))
        around.after(batch)
        plan.step += 1
    around.end()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--change", choices=CHANGES, default="none")
    options.add_argument("--at", type=int, default=160)
    options.add_argument("--steps", type=int, default=330)
    options.add_argument("--sleep-ms", type=float, default=10.0)
    options.add_argument("--extra-ms", type=float, default=6.0)
    options.add_argument("--uneven", action="store_true", help="the first steps differ")
    plan = Plan(options.parse_args())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Net(plan)
    model: nn.Module = net
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
        parallel = DistributedDataParallel(net)
        if plan.change == "exchange":
            parallel.register_comm_hook(plan, delayed_hook)
        model = parallel
    optimizer = Update(net.parameters(), lr=1e-3)
    if plan.change == "unfused":
        weights = [*net.parameters(), *parts.many_small()]
        optimizer = Update(weights, lr=1e-3, momentum=0.9, foreach=True)
    optimizer.plan = plan
    if plan.change == "hook":
        parts.watch_gradients([*net.parameters()], lambda: plan.extra("hook"))
    elif plan.change == "average":
        parts.Averages(optimizer, lambda: AVERAGES if plan.is_on("average") else 0)
    loader: DataLoader[torch.Tensor]
    if plan.change in {"input", "workers"}:
        workers = int(plan.change == "workers")
        loader = DataLoader(Batches(plan), batch_size=BATCH, num_workers=workers)
    else:
        loader = DataLoader(Samples(), batch_sampler=Sizes(plan))
    train(plan, model, net, optimizer, loader)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
