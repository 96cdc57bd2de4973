"""A job of some ranks in PyTorch over gloo that hangs as its arguments say (`hang_job`)."""

from __future__ import annotations

import functools
import os
import time
from datetime import timedelta
from typing import Any

import hang_sites
import torch
import torch.distributed as dist
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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Any]):
    """Pictures."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        plant_sample(index)
        return torch.ones(3, 8, 8)


class Slow(torch.autograd.Function):
    """Hangs in the backward, on one rank."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        if NOW == AT and plant("backward"):
            hang_sites.decode_sleeping()
        return gradients[0]


class Model(torch.nn.Module):
    """A small convolutional network with buffers."""

    def __init__(self) -> None:
        super().__init__()
        convolution = torch.nn.Conv2d(3, 8, 3)
        self.net = torch.nn.Sequential(
            convolution, torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 1)
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if NOW == AT and plant("forward"):
            hang_sites.take_lock()
        slowed: torch.Tensor = Slow.apply(self.net(batch))
        return slowed.mean()


NOW = 0


def hang_in_loop(model: Any) -> None:
    """Hang between two steps, if this rank is to."""
    for name, act in SIMPLE.items():
        if plant(name):
            act()
    if plant("mismatch_op"):
        parts = [torch.zeros(1) for _ in range(WORLD)]
        dist.all_gather(parts, torch.ones(1))  # site: mismatch_op
    if plant("mismatch_order"):
        dist.barrier()  # site: mismatch_order
    if plant("store"):
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # no public name
        hang_sites.wait_for_key(store, ["another key"])
    if plant("receive"):
        dist.recv(torch.ones(3), (ME + 1) % WORLD)  # site: receive
    if plant("new_group"):
        dist.new_group(list(range(WORLD)))  # site: new_group
    if plant("evaluate_with_ddp"):
        model.eval()
        with torch.no_grad():
            model.train(False)
            parts = [torch.zeros(1) for _ in range(WORLD)]
            dist.all_gather(parts, torch.ones(1))  # site: evaluate_with_ddp
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
            dist.all_reduce(torch.ones(1), group=GROUPS[0])
    if PLANT == "groups":
        note_time()
        if IS_CULPRIT:
            dist.all_reduce(torch.ones(1), group=GROUPS[1])  # site: groups
        dist.all_reduce(torch.ones(1), group=GROUPS[0])
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
        compiled = torch.compile(plus_one, backend=slow_compiler)  # site: compile
        compiled(torch.ones(2))  # site: compile
    if plant("checkpoint"):
        slow = SlowToSave(EVALUATED_S * LIMIT_S)
        torch.save({"slow": slow}, os.path.join(FOLDER, "checkpoint.pt"))
    dist.barrier()


def stand_in_device() -> Any:
    """Return torch's own function that waits for a device, which never answers."""
    cuda, lower = vars(torch.cuda), vars(torch._C)  # noqa: SLF001  # there is no GPU
    cuda.update(_lazy_init=int, _exchange_device=bool, _maybe_exchange_device=bool)
    forever = functools.partial(time.sleep, 900)
    lower["_cuda_synchronize"] = forever
    return torch.cuda.synchronize


GROUPS: list[Any] = []


def make_groups() -> None:
    """Make the groups of a hang that needs some."""
    wanted = {"groups": [list(range(WORLD))] * 2, "subgroup": [PAIR]}
    GROUPS.extend(map(dist.new_group, wanted.get(PLANT, [])))


def share_loss(loss: torch.Tensor) -> None:
    """Exchange the loss; one rank may send another size or type, or forget it."""
    if NOW == AT and plant("mismatch_size"):
        loss = torch.ones(70_000)
    if NOW == AT and plant("mismatch_type"):
        loss = loss.double()
    if NOW == AT and plant("skipped_call"):
        return
    dist.all_reduce(loss)  # site: mismatch_size, mismatch_type


def plus_one(value: Any) -> Any:
    return value + 1


def slow_compiler(graph: Any, inputs: Any) -> Any:
    hang_sites.slow_backend(EVALUATED_S * LIMIT_S)
    return graph.forward


def main() -> None:
    global NOW
    if plant("join"):
        hang_sites.before_joining()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    make_groups()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    workers = 2 if PLANT.startswith("data_worker") else 0
    loader = DataLoader(Samples(), batch_size=8, num_workers=workers, shuffle=False)
    for NOW, batch in enumerate(loader):
        if NOW == AT:
            hang_in_loop(model)
            if plant("uneven"):
                break
        optimizer.zero_grad()
        loss = model(batch)  # site: skipped_call
        loss.backward()  # site: skipped_call
        optimizer.step()
        share_loss(loss.detach())
        time.sleep(STEP_S)
        if PLANT in {"late", *LONG} and AT + 20 < NOW:
            break
        if PLANT == "healthy":
            live_well(model, NOW)
            if 3 * AT <= NOW:
                break
    dist.barrier()  # site: uneven
    dist.destroy_process_group()


def live_well(model: Any, step: int) -> None:
    """Evaluate on rank 0, write a checkpoint slowly, compile: each takes longer than the limit."""
    if step == AT and ME == 0:
        model.eval()
        hang_sites.evaluate(model, 1.5 * LIMIT_S)
        model.train()
    if step == 2 * AT and ME == 0:
        torch.save({"slow": SlowToSave()}, os.path.join(FOLDER, "checkpoint.pt"))
    if step == 3 * AT - 5 and IS_CULPRIT:
        torch.compile(lambda value: value + 1, backend=slow_compiler)(torch.ones(2))
    if step in {AT, 2 * AT, 3 * AT - 5}:
        dist.barrier()


if __name__ == "__main__":
    main()
