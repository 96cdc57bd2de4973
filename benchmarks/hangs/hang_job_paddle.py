"""The same as `hang_job_torch.py` for Paddle.

hang_job_paddle.py PLANT VARIANT RANK STEP LIMIT FOLDER
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.io import DataLoader, Dataset

PLANT, VARIANT, RANK, STEP, LIMIT, FOLDER = sys.argv[1:7]
ME = int(os.environ["PADDLE_TRAINER_ID"])
WORLD = int(os.environ["PADDLE_TRAINERS_NUM"])
IS_CULPRIT = int(RANK) == ME
AT = int(STEP)
LIMIT_S = float(LIMIT)
HELD_OUT = VARIANT == "held-out"
SITES: Any = importlib.import_module("hang_other_sites" if HELD_OUT else "hang_sites")
STEPS = 10_000
EVALUATED_S = 2.5


def plant(name: str) -> bool:
    """Return true if this rank is to hang in this way; note the time."""
    if name != PLANT or not IS_CULPRIT:
        return False
    Path(FOLDER, "planted").write_text(str(time.time()))
    return True


class Samples(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Vectors, or pictures."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> Any:
        if index == 8 * AT and (plant("data_inline") or plant("data_worker")):
            SITES.read_sample()
        if index == 8 * AT and plant("data_worker_stopped"):
            SITES.stop()
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
SIMPLE = {
    "sleep": SITES.decode_sleeping,
    "spin": SITES.spin,
    "read": lambda: SITES.read_manifest(FOLDER),
    "lock": SITES.take_lock,
    "queue": SITES.take_from_queue,
    "native": SITES.call_native,
    "subprocess": SITES.run_tool,
    "pipe": SITES.write_log,
    "raise": SITES.fail,
    "stopped": SITES.stop,
    "killed": SITES.die,
    "exited": SITES.leave,
    "late": lambda: SITES.late(2 * LIMIT_S),
}


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
        Path(FOLDER, "planted").write_text(str(time.time()))
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
        paddle.save({"slow": SlowToSave()}, os.path.join(FOLDER, "checkpoint.pd"))
    if step in {AT, 2 * AT}:
        dist.barrier()


class SlowToSave:
    """Takes long to be pickled."""

    def __reduce__(self) -> Any:
        time.sleep(1.5 * LIMIT_S)
        return dict, ()


if __name__ == "__main__":
    main()
