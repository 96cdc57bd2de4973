"""A job of some ranks in PyTorch over gloo that hangs as its arguments say (`hang_job`)."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[Any]):
    """Random vectors, or pictures."""

    def __len__(self) -> int:
        return 8 * STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        plant_sample(index)
        return torch.ones(3, 8, 8) if HELD_OUT else torch.ones(32)


class Slow(torch.autograd.Function):
    """Hangs in the backward, on one rank."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        if NOW == AT and plant("backward"):
            SITES.decode_sleeping()
        return gradients[0]


class Model(torch.nn.Module):
    """A small network with buffers; the held-out one is convolutional."""

    def __init__(self) -> None:
        super().__init__()
        if HELD_OUT:
            convolution = torch.nn.Conv2d(3, 8, 3)
            self.net = torch.nn.Sequential(
                convolution, torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(288, 1)
            )
        else:
            self.net = torch.nn.Sequential(
                torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1)
            )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if NOW == AT and plant("forward"):
            SITES.take_lock()
        slowed: torch.Tensor = Slow.apply(self.net(batch))
        return slowed.mean()


NOW = 0


def hang_in_loop(model: Any) -> None:  # noqa: C901, PLR0912  # one branch per plant
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
        SITES.wait_for_key(store)
    if plant("receive"):
        dist.recv(torch.ones(3), (ME + 1) % WORLD)  # site: receive
    if plant("evaluate_with_ddp"):
        model.eval()
        with torch.no_grad():
            model.train(False)
            parts = [torch.zeros(1) for _ in range(WORLD)]
            dist.all_gather(parts, torch.ones(1))  # site: evaluate_with_ddp
    if PLANT == "link":
        cut_links()
    if PLANT == "evaluate" and NOW == AT:
        if plant("evaluate"):
            model.eval()
            SITES.evaluate(model, EVALUATED_S * LIMIT_S)
            model.train()
        dist.barrier()
    if PLANT == "groups" and NOW == AT:
        cross_groups()
    if PLANT == "compile" and NOW == AT:
        if plant("compile"):
            torch.compile(lambda value: value + 1, backend=slow_compiler)(torch.ones(2))
        dist.barrier()


def share_loss(loss: torch.Tensor) -> None:
    """Exchange the loss; one rank may send another size or type."""
    if NOW == AT and plant("mismatch_size"):
        loss = torch.ones(70_000)
    if NOW == AT and plant("mismatch_type"):
        loss = loss.double()
    dist.all_reduce(loss)  # site: mismatch_size, mismatch_type


def slow_compiler(graph: Any, inputs: Any) -> Any:
    SITES.slow_backend(EVALUATED_S * LIMIT_S)
    return graph.forward


def cross_groups() -> None:
    """Have the ranks wait for each other in two groups."""
    everybody: Any = list(range(WORLD))
    first: Any = dist.new_group(everybody)
    second: Any = dist.new_group(everybody)
    note_time()
    if IS_CULPRIT:
        dist.all_reduce(torch.ones(1), group=second)  # site: groups
    dist.all_reduce(torch.ones(1), group=first)


def cut_links() -> None:
    """Have the sockets between ranks stay open and pass nothing on."""
    import socket
    import stat

    note_time()
    silent, other = socket.socketpair()
    store = int(os.environ["MASTER_PORT"])
    for number in list(map(int, os.listdir("/proc/self/fd"))):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode) or number in {
                silent.fileno(),
                other.fileno(),
            }:
                continue
            peer = socket.socket(fileno=os.dup(number))
            ports = {peer.getsockname()[1], peer.getpeername()[1]}
        except (OSError, IndexError):
            continue
        if store not in ports:
            KEPT.append(peer)
            os.dup2(silent.fileno(), number)
    KEPT.extend([silent, other])


KEPT: list[Any] = []


def main() -> None:
    global NOW
    if plant("join"):
        SITES.before_joining()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    workers = 2 if PLANT.startswith("data_worker") else 0
    loader = DataLoader(Samples(), batch_size=8, num_workers=workers, shuffle=False)
    for NOW, batch in enumerate(loader):
        if NOW == AT:
            hang_in_loop(model)
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        share_loss(loss.detach())
        time.sleep(0.03)
        if PLANT in {"late", "evaluate", "compile"} and AT + 20 < NOW:
            break
        if PLANT == "healthy":
            live_well(model, NOW)
            if 3 * AT <= NOW:
                break
    dist.barrier()
    dist.destroy_process_group()


def live_well(model: Any, step: int) -> None:
    """Evaluate on rank 0, write a checkpoint slowly, compile: each takes longer than the limit."""
    if step == AT and ME == 0:
        model.eval()
        SITES.evaluate(model, 1.5 * LIMIT_S)
        model.train()
    if step == 2 * AT and ME == 0:
        torch.save({"slow": SlowToSave()}, os.path.join(FOLDER, "checkpoint.pt"))
    if step == 3 * AT - 5 and IS_CULPRIT:
        torch.compile(lambda value: value + 1, backend=slow_compiler)(torch.ones(2))
    if step in {AT, 2 * AT, 3 * AT - 5}:
        dist.barrier()


if __name__ == "__main__":
    main()
