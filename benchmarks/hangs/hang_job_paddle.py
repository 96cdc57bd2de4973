"""A job of some ranks in Paddle over gloo that hangs as its arguments say (`hang_job`)."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

import hang_sites
import numpy as np
import paddle
import paddle.distributed as dist
from hang_job import (
    AT,
    EVALUATED_S,
    FOLDER,
    IS_CULPRIT,
    LIMIT_S,
    ME,
    PAIR,
    PLANT,
    SIMPLE,
    STEP_S,
    STEPS,
    WORLD,
    SlowToSave,
    cut_links,
    note_time,
    plant,
    plant_sample,
)
from paddle.io import DataLoader, Dataset


class Samples(Dataset):  # type: ignore[type-arg]  # Paddle 2.6 has no generic one
    """Pictures."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> Any:
        plant_sample(index)
        return np.ones((3, 8, 8), np.float32)


class Model(paddle.nn.Layer):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = paddle.nn.Sequential(
            paddle.nn.Conv2D(3, 8, 3), paddle.nn.Flatten(), paddle.nn.Linear(288, 1)
        )

    def forward(self, batch: Any) -> Any:
        if NOW == AT and plant("forward"):
            hang_sites.take_lock()
        made = self.net(batch)
        if NOW == AT and PLANT == "backward" and IS_CULPRIT:
            made.register_hook(slow_gradient)
        return made.mean()


def slow_gradient(gradient: Any) -> Any:
    if plant("backward"):
        hang_sites.decode_sleeping()
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
    if plant("store"):
        hang_sites.wait_for_key(paddle.base.core.create_or_get_global_tcp_store(), "another key")
    if plant("receive"):
        dist.recv(paddle.ones([3]), (ME + 1) % WORLD)  # site: receive
    if plant("new_group"):
        dist.new_group(list(range(WORLD)))  # site: new_group
    if plant("evaluate_with_ddp"):
        model.eval()
        with paddle.no_grad():
            dist.all_gather([], paddle.ones([1]))  # site: evaluate_with_ddp
    if plant("device"):
        hang_sites.wait_for_device(stand_in_device())
    hang_together(model)


def hang_together(model: Any) -> None:
    """Take part in a hang in which other ranks have a part, too."""
    if PLANT == "link":
        cut_links()
    if PLANT == "device_everywhere":
        note_time()
        hang_sites.wait_for_device(stand_in_device())
    if PLANT == "subgroup":
        if plant("subgroup"):
            hang_sites.decode_sleeping()
        if ME in PAIR:
            dist.all_reduce(paddle.ones([1]), group=GROUPS[0])
    if PLANT == "groups":
        note_time()
        if IS_CULPRIT:
            dist.all_reduce(paddle.ones([1]), group=GROUPS[1])  # site: groups
        dist.all_reduce(paddle.ones([1]), group=GROUPS[0])
    if PLANT in LONG:
        take_long(model)


LONG = ("evaluate", "compile", "checkpoint")


def take_long(model: Any) -> None:
    """Have one rank do what may take long, while the others wait in a barrier."""
    if plant("evaluate"):
        model.eval()
        hang_sites.evaluate(model, EVALUATED_S * LIMIT_S)
        model.train()
    if plant("compile"):
        compiled = paddle.jit.to_static(compiled_slowly, full_graph=True)
        compiled(paddle.ones([2]))  # site: compile
    if plant("checkpoint"):
        saved: Any = {"slow": SlowToSave(EVALUATED_S * LIMIT_S)}
        paddle.save(saved, os.path.join(FOLDER, "checkpoint.pd"))
    dist.barrier()


def compiled_slowly(value: Any) -> Any:
    """Compute little; tracing this takes long."""
    paddle.jit.not_to_static(hang_sites.slow_backend)(EVALUATED_S * LIMIT_S)
    return value + 1


def stand_in_device() -> Any:
    """Return Paddle's own function that waits for a device, which never answers."""
    vars(vars(paddle.device.cuda)["core"])["_device_synchronize"] = time.sleep
    return functools.partial(paddle.device.cuda.synchronize, 900)


def share_loss(loss: Any) -> None:
    """Exchange the loss; one rank may send another size or type, or forget it."""
    if NOW == AT and plant("mismatch_size"):
        loss = paddle.ones([70_000])
    if NOW == AT and plant("mismatch_type"):
        loss = loss.astype("float64")
    if NOW == AT and plant("skipped_call"):
        return
    dist.all_reduce(loss)  # site: mismatch_size, mismatch_type


GROUPS: list[Any] = []


def make_groups() -> None:
    """Make the groups of a hang that needs some."""
    wanted = {"groups": [list(range(WORLD))] * 2, "subgroup": [PAIR]}
    GROUPS.extend(map(dist.new_group, wanted.get(PLANT, [])))


def main() -> None:
    global NOW
    if plant("join"):
        hang_sites.before_joining()
    dist.init_parallel_env()
    make_groups()
    paddle.seed(0)
    model = paddle.DataParallel(Model())
    optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    workers = 2 if PLANT.startswith("data_worker") else 0
    loader = DataLoader(Samples(), batch_size=8, num_workers=workers, shuffle=False)
    for NOW, batch in enumerate(loader):
        if NOW == AT:
            hang_in_loop(model)
            if plant("uneven"):
                break
        loss = model(batch)  # site: skipped_call
        loss.backward()  # site: skipped_call
        optimizer.step()
        optimizer.clear_grad()
        share_loss(loss.detach())
        time.sleep(STEP_S)
        if PLANT in {"late", *LONG} and AT + 20 < NOW:
            break
        if PLANT == "healthy":
            live_well(model, NOW)
            if 2 * AT + 10 <= NOW:
                break
    dist.barrier()  # site: uneven


def live_well(model: Any, step: int) -> None:
    """Evaluate on rank 0, and write a checkpoint slowly: both take longer than the limit."""
    if step == AT and ME == 0:
        model.eval()
        hang_sites.evaluate(model, 1.5 * LIMIT_S)
        model.train()
    if step == 2 * AT and ME == 0:
        saved: Any = {"slow": SlowToSave()}
        paddle.save(saved, os.path.join(FOLDER, "checkpoint.pd"))
    if step in {AT, 2 * AT}:
        dist.barrier()


if __name__ == "__main__":
    main()
