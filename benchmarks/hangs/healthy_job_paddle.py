"""A healthy job of two ranks over gloo, with parts that take long.

healthy_job_paddle.py SEED LIMIT FOLDER
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from healthy_plan import CHECKPOINT, EVALUATION, SlowToSave, own_plan
from paddle.io import DataLoader, Dataset

PLAN, ME, FOLDER = own_plan("paddle", sys.argv[1:])
BATCH = 8


class Samples(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Vectors, some of which are slow to read."""

    def __len__(self) -> int:
        return BATCH * PLAN.steps * PLAN.accumulation

    def __getitem__(self, index: int) -> Any:
        if index % BATCH == 0:
            PLAN.read_sample(index // BATCH)
        return np.ones(32, dtype="float32")


def main() -> None:
    dist.init_parallel_env()
    time.sleep(PLAN.before[ME])
    dist.barrier()
    paddle.seed(0)
    net = paddle.nn.Sequential(paddle.nn.Linear(32, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 1))
    model = paddle.DataParallel(net)
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())

    def validate(seconds: float) -> None:
        net.eval()
        with paddle.no_grad():
            PLAN.evaluate(lambda: net(paddle.ones([BATCH, 32])), seconds)
        net.train()

    def save(seconds: float) -> None:
        content: Any = {"model": net.state_dict(), "slow": SlowToSave(seconds)}
        paddle.save(content, os.path.join(FOLDER, f"checkpoint-{ME}.pd"))

    acts = {EVALUATION: validate, CHECKPOINT: save}
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=PLAN.workers)
    for number, batch in enumerate(loader):
        is_last = (number + 1) % PLAN.accumulation == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            PLAN.take_step(ME)
            model(batch).mean().backward()
        if is_last:
            optimizer.step()
            optimizer.clear_grad()
            PLAN.live(number // PLAN.accumulation, ME, acts, dist.barrier)
    time.sleep(PLAN.after[ME])
    dist.barrier()


if __name__ == "__main__":
    main()
