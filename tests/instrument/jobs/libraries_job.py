"""Small jobs of Megatron Core and DeepSpeed for torchrun; they know no profiler.

Each rank writes its losses into `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader

WIDTH, BATCH, STEPS = 16, 8, 12
HIDDEN = 4 * WIDTH
Step = Callable[[torch.Tensor], float]


def make_megatron(tensor_parallel: int) -> Step:
    """Return the step of a model that Megatron splits by tensors, or copies."""
    from megatron.core import parallel_state
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
    config = ModelParallelConfig(
        tensor_model_parallel_size=tensor_parallel, use_cpu_initialization=True
    )
    common = {"config": config, "init_method": nn.init.xavier_normal_, "bias": False}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = ColumnParallelLinear(WIDTH, HIDDEN, gather_output=False, **common)
            self.down = RowParallelLinear(
                HIDDEN, WIDTH, input_is_parallel=True, skip_bias_add=False, **common
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            added: torch.Tensor = self.down(torch.relu(self.up(x)[0]))[0]
            return added

    model: nn.Module = Model()
    if tensor_parallel == 1:
        group = parallel_state.get_data_parallel_group()
        model = nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> float:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def make_deepspeed(stage: int) -> Step:
    """Return the step of a model whose states DeepSpeed shards."""
    import deepspeed
    from deepspeed.comm import torch as backend

    # Without its own kernel for CPUs, which takes minutes to compile.
    vars(backend)["build_shm_op"] = lambda: None
    deepspeed.init_distributed("gloo")
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
    options = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
    }
    engine: Any = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=options
    )[0]

    def step(x: torch.Tensor) -> float:
        loss = engine(x).square().mean()
        engine.backward(loss)
        engine.step()
        return float(loss)

    return step


JOBS: dict[str, Callable[[], Step]] = {
    "megatron-dp": lambda: make_megatron(1),
    "megatron-tp": lambda: make_megatron(2),
    "zero-1": lambda: make_deepspeed(1),
    "zero-2": lambda: make_deepspeed(2),
    "zero-3": lambda: make_deepspeed(3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(JOBS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    step = JOBS[options.kind]()
    data: Any = torch.randn(BATCH * STEPS, WIDTH)
    losses = [step(x).hex() for x in DataLoader(data, batch_size=BATCH)]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{dist.get_rank()}.json").write_text(json.dumps(losses), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
