"""A healthy job of two ranks over gloo, with parts that take long.

healthy_job_torch.py SEED LIMIT FOLDER
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from healthy_plan import CHECKPOINT, COMPILE, EVALUATION, SlowToSave, own_plan
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PLAN, ME, FOLDER = own_plan("torch", sys.argv[1:])
BATCH = 8


class Samples(Dataset[Any]):
    """Random vectors, some of which are slow to read."""

    def __len__(self) -> int:
        return BATCH * PLAN.steps * PLAN.accumulation

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH == 0:
            PLAN.read_sample(index // BATCH)
        return torch.ones(32)


def slow_compiler(seconds: float) -> Any:
    def compile_slowly(graph: Any, inputs: Any) -> Any:
        time.sleep(seconds)
        return graph.forward

    return compile_slowly


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    time.sleep(PLAN.before[ME])
    dist.barrier()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def validate(seconds: float) -> None:
        net.eval()
        with torch.no_grad():
            PLAN.evaluate(lambda: net(torch.ones(BATCH, 32)), seconds)
        net.train()

    def save(seconds: float) -> None:
        content = {"model": net.state_dict(), "slow": SlowToSave(seconds)}
        torch.save(content, os.path.join(FOLDER, f"checkpoint-{ME}.pt"))

    def compile_once(seconds: float) -> None:
        torch.compile(lambda value: value + 1, backend=slow_compiler(seconds))(torch.ones(2))

    acts = {EVALUATION: validate, CHECKPOINT: save, COMPILE: compile_once}
    for number, batch in enumerate(DataLoader(Samples(), BATCH, num_workers=PLAN.workers)):
        is_last = (number + 1) % PLAN.accumulation == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            PLAN.take_step(ME)
            model(batch).mean().backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            PLAN.live(number // PLAN.accumulation, ME, acts, dist.barrier)
    time.sleep(PLAN.after[ME])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
