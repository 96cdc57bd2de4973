"""Small sharded training jobs for torchrun: FSDP, HSDP, tensors, pipelines and experts.

A job knows no profiler. Each rank writes its losses, and the collectives that a step must have by
the closed form, into `--out`. With `--probe`, torch's own profiler counts the collectives of the
last steps, which has nothing in common with profkit's hooks.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gloo_messages import wait_for_all_messages
from sharded_models import BATCH, BLOCKS, FLOAT, MICROBATCHES, WIDTH, Block, Model, bytes_of
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROOT_BYTES = FLOAT * WIDTH * WIDTH
BLOCK_BYTES = FLOAT * 8 * WIDTH * WIDTH
ACTIVATION_BYTES = FLOAT * BATCH * WIDTH

Expected = dict[str, tuple[int, int]]
"""For each operation, how often a rank takes part in it per step, and its bytes."""


@dataclass
class Job:
    """One rank's part of a job."""

    step: Callable[[torch.Tensor, torch.Tensor], float]
    expected: Expected
    data_parallel: int
    """The number of ranks that train on different samples."""
    data_rank: int
    layout: dict[str, int] = field(default_factory=dict)
    keep: list[Any] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    """The blocks of this rank."""


def plain_step(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def fsdp2(mesh: Any, model: Model) -> Job:
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):  # until torch 2.5
        fsdp = importlib.import_module("torch.distributed._composable.fsdp")

    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    blocks = BLOCKS * BLOCK_BYTES
    # A block is gathered for its forward and its backward, the root only once.
    expected = {
        "all_gather": (1 + 2 * BLOCKS, ROOT_BYTES + 2 * blocks),
        "reduce_scatter": (1 + BLOCKS, ROOT_BYTES + blocks),
    }
    shard = mesh.size(mesh.ndim - 1)
    if mesh.ndim == 2:
        expected["all_reduce"] = (1 + BLOCKS, (ROOT_BYTES + blocks) // shard)
    return Job(plain_step(model), expected, mesh.size(), dist.get_rank())


def make_fsdp2(model: Model) -> Job:
    return fsdp2(init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",)), model)


def make_hsdp(model: Model) -> Job:
    shape = (dist.get_world_size() // 2, 2)
    return fsdp2(init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")), model)


def make_fsdp1(model: Model) -> Job:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    wrapped = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    blocks = BLOCKS * BLOCK_BYTES
    expected = {
        "all_gather": (1 + 2 * BLOCKS, ROOT_BYTES + 2 * blocks),
        "reduce_scatter": (1 + BLOCKS, ROOT_BYTES + blocks),
    }
    return Job(plain_step(wrapped), expected, dist.get_world_size(), dist.get_rank())


def make_ddp(model: Model) -> Job:
    wrapped = nn.parallel.DistributedDataParallel(model)
    expected = {"all_reduce": (1, bytes_of(model))}
    return Job(plain_step(wrapped), expected, dist.get_world_size(), dist.get_rank())


def make_tp(model: Model, device: str = "cpu") -> Job:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    # Each block sums its result in forward, and the gradient of its input in backward.
    expected = {"all_reduce": (2 * BLOCKS, 2 * BLOCKS * ACTIVATION_BYTES)}
    return Job(plain_step(model), expected, 1, 0, keep=[mesh])


def make_dtensor(model: Model) -> Job:
    """Return a job that changes the placement of its activations by hand."""
    tensors: Any = importlib.import_module("torch.distributed.tensor")
    if not hasattr(tensors, "DTensor"):  # until torch 2.4
        tensors = importlib.import_module("torch.distributed._tensor")
    whole, part, split = tensors.Replicate(), tensors.Partial(), tensors.Shard(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    train = plain_step(model)
    changes = [(split, whole), (part, whole), (split, tensors.Shard(1))]

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        for before, after in changes:
            placed = tensors.DTensor.from_local(x, mesh, [before], run_check=False)
            x = x + 0 * placed.redistribute(placements=[after]).to_local().sum()
        return train(x, y)

    # On the CPU, torch changes the split dimension by gathering all of the tensor.
    size = mesh.size() * ACTIVATION_BYTES
    expected = {"all_gather": (2, 2 * size), "all_reduce": (1, ACTIVATION_BYTES)}
    return Job(step, expected, 1, 0, keep=[mesh])


class AllToAll(torch.autograd.Function):
    """Sends each rank its part of the samples; the gradients take the same way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return AllToAll.apply(gradients[0], ctx.group), None


class Expert(nn.Module):
    """A block on each rank, to which each rank sends a part of its samples."""

    def __init__(self, block: nn.Module, group: Any) -> None:
        super().__init__()
        self.block, self.group = block, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = AllToAll.apply(self.block(AllToAll.apply(x, self.group)), self.group)
        return result


def make_experts(model: Model, device: str = "cpu") -> Job:
    """Return a job in which each block is an expert per rank, and the first layer is shared."""
    world = dist.get_world_size()
    mesh = init_device_mesh(device, (world,), mesh_dim_names=("ep",))
    group = mesh.get_group("ep")
    model.blocks = nn.ModuleList([Expert(block, group) for block in model.blocks])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        shared: Any = model.first.weight.grad
        dist.all_reduce(shared, group=group)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    # A block's samples go to the experts and back, and so do their gradients.
    expected = {
        "all_to_all": (4 * BLOCKS, 4 * BLOCKS * ACTIVATION_BYTES),
        "all_reduce": (1, ROOT_BYTES),
    }
    return Job(step, expected, world, dist.get_rank(), keep=[mesh])


def pipeline(model: Model, per_rank: int, device: str = "cpu") -> Job:
    """Return a pipeline with so many stages on each rank."""
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleInterleaved1F1B,
    )

    wait_for_all_messages()
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("pp",))
    rank, world, place = dist.get_rank(), dist.get_world_size(), torch.device(device)
    count = world * per_rank
    blocks = [*model.blocks, *(Block().to(place) for _ in range(count - BLOCKS))]
    per, stages = -(-len(blocks) // count), []  # type: int, list[Any]
    shapes: dict[str, Any] = {}
    if inspect.signature(PipelineStage).parameters["input_args"].default is inspect.Parameter.empty:
        shapes["input_args"] = torch.empty(BATCH // MICROBATCHES, WIDTH)  # until torch 2.5
    for number in range(rank, count, world):
        part = nn.Sequential(*blocks[number * per : (number + 1) * per])
        stages.append(
            PipelineStage(part, number, count, place, group=mesh.get_group("pp"), **shapes)
        )
    schedule: Any
    if per_rank == 1:
        schedule = Schedule1F1B(stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss)
    else:
        schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    parts = nn.ModuleList([stage.submod for stage in stages])
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        return float(torch.stack(losses).mean().detach()) if losses else 0.0

    neighbours = sum((stage.stage_index > 0) + (stage.stage_index < count - 1) for stage in stages)
    message = (neighbours * MICROBATCHES, neighbours * ACTIVATION_BYTES)
    job = Job(step, {"send": message, "recv": message}, 1, 0, keep=[mesh])
    job.blocks = [block for block in parts.modules() if isinstance(block, Block)]
    return job


JOBS: dict[str, Callable[[Model], Job]] = {
    "ddp": make_ddp,
    "dtensor": make_dtensor,
    "experts": make_experts,
    "fsdp1": make_fsdp1,
    "fsdp2": make_fsdp2,
    "hsdp": make_hsdp,
    "interleaved": lambda model: pipeline(model, 2),
    "pp": lambda model: pipeline(model, 1),
    "tp": make_tp,
}

PROBED = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
}
"""The operators of torch that start collectives, as its profiler names them."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(JOBS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--probe", type=int, default=0, help="count so many of the last steps")
    parser.add_argument("--late-ms", type=float, default=0.0, help="the last rank sleeps so long")
    parser.add_argument("--slow-ms", type=float, default=0.0, help="each stage sleeps so long")
    parser.add_argument("--again", type=int, default=0, help="train on so many batches, forever")
    parser.add_argument("--leave-open", action="store_true", help="destroy no process group")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = JOBS[options.kind](Model())
    for block in job.blocks[-1:] if options.kind == "pp" else job.blocks:
        block.sleep_s = options.slow_ms / 1e3
    count = options.steps * BATCH * job.data_parallel
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(count, WIDTH), torch.randn(count, WIDTH))
    sampler: Any = DistributedSampler(
        data, num_replicas=job.data_parallel, rank=job.data_rank, shuffle=False
    )
    batches: Any = DataLoader(data, BATCH, sampler=sampler)
    if options.again:
        batches = list(batches)[: options.again] * (options.steps // options.again)
    expected = {op: list(numbers) for op, numbers in job.expected.items()}
    losses, starts, probe = [], [time.monotonic_ns()], None
    for number, (x, y) in enumerate(batches):
        if options.probe and number == options.steps - options.probe:
            probe = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            probe.start()
        if options.late_ms and rank == dist.get_world_size() - 1:
            time.sleep(options.late_ms / 1e3)
        losses.append(job.step(x, y).hex())
        starts.append(time.monotonic_ns())
    counted: Counter[str] = Counter()
    if probe is not None:
        probe.stop()
        for event in probe.events():
            if event.name.startswith("c10d::"):
                counted[PROBED.get(event.name[6:], event.name)] += 1
    result = {
        "losses": losses,
        "step_ns": [end - start for start, end in itertools.pairwise(starts)],
        "expected": expected,
        "samples_per_step": BATCH * job.data_parallel,
        "probe": dict(counted),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()  # a rank that leaves while another still speaks to it ends that one
    if not options.leave_open:
        dist.destroy_process_group()
    time.sleep(0.2)


if __name__ == "__main__":
    main()
