"""A small job of `paddle.distributed.fleet` on two ranks, which are parallel in one dimension."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")

import paddle  # it reads the backend from the environment
import paddle.distributed as dist
from paddle.distributed import fleet as paddle_fleet
from paddle.io import DataLoader, DistributedBatchSampler, TensorDataset

fleet: Any = paddle_fleet  # some of its names are not exported
WIDTH, BATCH, STEPS, MICROBATCHES = 8, 8, 10, 4
LATE_S, LATE_FROM = 0.05, 4
Step = Callable[[Any, Any], float]


def start(**degrees: int) -> None:
    strategy = fleet.DistributedStrategy()
    sizes = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1, **degrees}
    # By default, messages are sent on a device's stream.
    strategy.hybrid_configs = {**sizes, "pp_configs": {"use_batch_p2p_comm": False}}
    strategy.pipeline_configs = {
        "accumulate_steps": MICROBATCHES, "micro_batch_size": BATCH // MICROBATCHES
    }  # fmt: skip
    fleet.init(is_collective=True, strategy=strategy)
    paddle.seed(1)


def layers() -> list[Any]:
    return [paddle.nn.Linear(WIDTH, WIDTH) for _ in range(4)]


def plain_step(model: Any, optimizer: Any) -> Step:
    def step(x: Any, y: Any) -> float:
        loss = paddle.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step


def momentum(model: Any) -> Any:
    return paddle.optimizer.Momentum(0.01, parameters=model.parameters())


def make_sharding() -> Step:
    """Stage 1: each rank updates its part of the parameters."""
    start(sharding_degree=2)
    model = paddle.nn.Sequential(*layers())
    wrapped = fleet.distributed_model(model)
    return plain_step(wrapped, fleet.distributed_optimizer(momentum(model)))


def make_pipeline() -> Step:
    start(pp_degree=2)
    env: Any = dist.ParallelEnv
    env._device_id = 0  # Paddle sets it on devices alone, and asks for it here
    model = fleet.meta_parallel.PipelineLayer(
        layers=layers(),
        loss_fn=paddle.nn.MSELoss(),
        topology=fleet.get_hybrid_communicate_group().topology(),
    )
    wrapped = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(momentum(model))
    return lambda x, y: float(wrapped.train_batch([x, y], optimizer).sum())


JOBS: dict[str, Callable[[], Step]] = {"pp": make_pipeline, "sharding": make_sharding}
"""The jobs that Paddle runs on the CPU; the ranks of a pipeline train on the same samples."""


def main(kind: str, out: Path) -> None:
    step = JOBS[kind]()
    ranks, rank = (1, 0) if kind == "pp" else (dist.get_world_size(), dist.get_rank())
    paddle.seed(2)
    count = STEPS * BATCH * ranks
    data = TensorDataset([paddle.randn([count, WIDTH]), paddle.randn([count, WIDTH])])
    sampler = DistributedBatchSampler(data, BATCH, num_replicas=ranks, rank=rank)
    losses = []
    for number, (x, y) in enumerate(DataLoader(data, batch_sampler=sampler)):
        if number >= LATE_FROM and dist.get_rank():
            time.sleep(LATE_S)  # the other rank waits for this one
        losses.append(step(x, y).hex())
    result = {"losses": losses, "samples_per_step": BATCH * ranks}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
