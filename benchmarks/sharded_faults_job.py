"""A small sharded job with one planted fault, for torchrun; it knows no profiler.

Layers sleep in place of computing, so that a machine with few cores has the same truth. Each rank
writes the lengths of its steps, by its own clock, into `--out`. With `--versus OPTIONS`, every
other step is one of a second job with these options besides, so that both meet the same state of
the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, IterableDataset

BATCH, LENGTH = 8, 16
Step = Callable[[torch.Tensor], None]


class Layer(nn.Module):
    """A layer that sleeps so long for each batch of the usual size."""

    def __init__(self, width: int, sleep_ms: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.sleep_s = sleep_ms / 1e3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s * x.shape[0] * x.shape[1] / (BATCH * LENGTH))
        added: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + added


class Attention(Layer):
    """A layer in which the elements of a sequence attend to each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s * x.shape[0] * x.shape[1] / (BATCH * LENGTH))
        keys, values = self.up(x).chunk(2, dim=-1)
        weights = torch.softmax(x @ keys.transpose(1, 2) / x.shape[-1] ** 0.5, dim=-1)
        added: torch.Tensor = self.down(torch.cat([weights @ values, x], dim=-1))
        return x + added


MODELS: dict[str, type[Layer]] = {"attention": Attention, "mlp": Layer}


class Batches(IterableDataset):  # type: ignore[type-arg]  # of tensors
    """Batches of these lengths in turn."""

    def __init__(self, count: int, lengths: list[int], width: int) -> None:
        self._count, self._lengths, self._width = count, lengths, width

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _, length in zip(range(self._count), itertools.cycle(self._lengths), strict=False):
            yield torch.randn(BATCH, length, self._width)


class Model(nn.Module):
    """Layers in a row, of which the next one's weights may be gathered early."""

    def __init__(self, layers: list[Layer], *, prefetch: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.prefetch = prefetch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers: list[Any] = [*self.layers]
        for place, layer in enumerate(layers):
            if self.prefetch and place + 1 < len(layers):
                layers[place + 1].unshard(async_op=True)
            x = layer(x)
        return x


def make_fsdp(options: argparse.Namespace, layers: list[Layer]) -> Step:
    from torch.distributed.fsdp import fully_shard

    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    if options.kind == "hsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = Model(layers, prefetch=options.prefetch)
    for layer in () if options.units == "one" else layers:
        for unit in (layer.up, layer.down) if options.units == "small" else (layer,):
            fully_shard(unit, mesh=mesh, reshard_after_forward=options.reshard)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_tensors(options: argparse.Namespace, layers: list[Layer]) -> Step:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for layer in layers:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_pipeline(options: argparse.Namespace, layers: list[Layer]) -> Step:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("pp",))
    ends = [0, options.first_stage or len(layers) // world, len(layers)]
    own = nn.Sequential(*layers[ends[rank] : ends[rank + 1]])
    stage = PipelineStage(own, rank, world, torch.device("cpu"), group=mesh.get_group("pp"))

    def loss_of(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return x.square().mean()

    schedule = Schedule1F1B(stage, options.microbatches, loss_fn=loss_of)
    optimizer = torch.optim.SGD(own.parameters(), lr=1e-4)

    def step(x: torch.Tensor) -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x, losses=[])
        optimizer.step()
        optimizer.zero_grad()

    return step


JOBS: dict[str, Callable[[argparse.Namespace, list[Layer]], Step]] = {
    "fsdp": make_fsdp,
    "hsdp": make_fsdp,
    "pp": make_pipeline,
    "tp": make_tensors,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(JOBS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp", help="of the layers")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--sleep-ms", type=float, default=4.0, help="of each layer's forward")
    parser.add_argument("--odd-rank", type=int, default=-1, help="the late one; default: the last")
    parser.add_argument("--late-ms", type=float, default=0.0, help="the odd rank, each step")
    parser.add_argument("--odd-length", type=int, default=LENGTH, help="the odd rank's sequences")
    parser.add_argument("--slow-layer", type=int, default=1, help="the number of the slow layer")
    parser.add_argument("--slow-layer-ms", type=float, default=0.0, help="more, of that layer")
    parser.add_argument("--first-stage", type=int, default=0, help="its layers; default: half")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--reshard", action="store_true", help="drop weights after forward")
    parser.add_argument("--units", choices=["layers", "one", "small"], default="layers")
    parser.add_argument("--prefetch", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--slow-rank", type=int, help="the layer is slow on this rank alone")
    parser.add_argument("--versus", default="", help="options of the second job")
    return parser.parse_args(arguments)


class Job:
    """A job as its options say, on this rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        rank = dist.get_rank()
        is_odd = rank == options.odd_rank % dist.get_world_size()
        torch.manual_seed(1)
        make = MODELS[options.model]
        layers = [make(options.width, options.sleep_ms) for _ in range(options.layers)]
        if options.slow_rank in (None, rank):
            layers[options.slow_layer].sleep_s += options.slow_layer_ms / 1e3
        self.length = options.odd_length if is_odd else LENGTH
        self._late_s = options.late_ms / 1e3 if is_odd else 0.0
        self._train = JOBS[options.kind](options, layers)

    def step(self, x: torch.Tensor) -> None:
        if self._late_s:
            time.sleep(self._late_s)
        self._train(x)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    jobs = [Job(options)]
    if options.versus:
        jobs.append(Job(parse([*sys.argv[1:], *options.versus.split()])))
    batches = Batches(options.steps, [job.length for job in jobs], options.width)
    starts = [time.monotonic_ns()]
    for x, job in zip(DataLoader(batches, batch_size=None), itertools.cycle(jobs), strict=False):
        job.step(x)
        starts.append(time.monotonic_ns())
    lengths = [end - start for start, end in itertools.pairwise(starts)]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{dist.get_rank()}.json").write_text(json.dumps(lengths), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


if __name__ == "__main__":
    main()
