"""A job of some ranks in Paddle over gloo that hangs as its arguments say (`hang_job`)."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from hang_job import (
    AT,
    EVALUATED_S,
    FOLDER,
    HELD_OUT,
    IS_CULPRIT,
    LIMIT_S,
    ME,
    PLANT,
    SIMPLE,
    SITES,
    STEPS,
    WORLD,
    SlowToSave,
    note_time,
    plant,
    plant_sample,
)
from paddle.io import DataLoader, Dataset


class Samples(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Vectors, or pictures."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> Any:
        plant_sample(index)
        return np.ones((3, 8, 8) if HELD_OUT else 32, np.float32)


class Model(paddle.nn.Layer):
    """A small network; the held-out one is convolutional."""

    def __init__(self) -> None:
        super().__init__()
        if HELD_OUT:
            self.net = paddle.nn.Sequential(
                paddle.nn.Conv2D(3, 8, 3), paddle.nn.Flatten(), paddle.nn.Linear(288, 1)
            )
        else:
            self.net = paddle.nn.Sequential(paddle.nn.Linear(32, 64), paddle.nn.Linear(64, 1))

    def forward(self, batch: Any) -> Any:
        if NOW == AT and plant("forward"):
            SITES.take_lock()
        made = self.net(batch)
        if NOW == AT and PLANT == "backward" and IS_CULPRIT:
            made.register_hook(slow_gradient)
        return made.mean()


def slow_gradient(gradient: Any) -> Any:
    if plant("backward"):
        SITES.decode_sleeping()
    return gradient


NOW = 0


def hang_in_loop(model: Any) -> None:
    """Hang between two steps, if this rank is to."""
    for name, act in SIMPLE.items():
        if plant(name):
            act()
    if plant("mismatch_op"):
        dist.all_gather([], paddle.ones([1]))  # site: mismatch_op
    if plant("mismatch_order"):
        dist.barrier()  # site: mismatch_order
    if PLANT == "groups":
        note_time()
        if IS_CULPRIT:
            dist.all_reduce(paddle.ones([1]), group=GROUPS[1])  # site: groups
        dist.all_reduce(paddle.ones([1]), group=GROUPS[0])
    if PLANT == "evaluate":
        if plant("evaluate"):
            model.eval()
            SITES.evaluate(model, EVALUATED_S * LIMIT_S)
            model.train()
        dist.barrier()


GROUPS: list[Any] = []


def main() -> None:
    global NOW
    if plant("join"):
        SITES.before_joining()
    dist.init_parallel_env()
    if PLANT == "groups":
        GROUPS.extend(dist.new_group(list(range(WORLD))) for _ in range(2))
    paddle.seed(0)
    model = paddle.DataParallel(Model())
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    workers = 2 if PLANT.startswith("data_worker") else 0
    loader = DataLoader(Samples(), batch_size=8, num_workers=workers, shuffle=False)
    for NOW, batch in enumerate(loader):
        if NOW == AT:
            hang_in_loop(model)
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        dist.all_reduce(loss.detach())
        time.sleep(0.03)
        if PLANT in {"late", "evaluate"} and AT + 20 < NOW:
            break
        if PLANT == "healthy":
            live_well(model, NOW)
            if 2 * AT + 10 <= NOW:
                break
    dist.barrier()


def live_well(model: Any, step: int) -> None:
    """Evaluate on rank 0, and write a checkpoint slowly: both take longer than the limit."""
    if step == AT and ME == 0:
        model.eval()
        SITES.evaluate(model, 1.5 * LIMIT_S)
        model.train()
    if step == 2 * AT and ME == 0:
        saved: Any = {"slow": SlowToSave()}
        paddle.save(saved, os.path.join(FOLDER, "checkpoint.pd"))
    if step in {AT, 2 * AT}:
        dist.barrier()


if __name__ == "__main__":
    main()
