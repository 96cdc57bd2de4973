"""Trains ResNet50 on synthetic data with frozen batch norm, alone or as a rank."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from profkit.rank import Rank
from profkit.workloads.base import Build, Parts, Settings
from profkit.workloads.resnet50 import WORKLOAD
from profkit.workloads.training.prepare import Seat, prepare

STEPS, SAMPLES, SIZE = 6, 48, 32


class Numbers:
    """Seeded images: each rank takes its share of every global batch."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, key: tuple[int, int]) -> tuple[Any, int]:
        rng = np.random.default_rng(key[1])
        return rng.standard_normal((3, SIZE, SIZE), dtype=np.float32), key[1] % 10


def build(given: Build) -> Parts:
    """The real parts with batch norm in evaluation mode: statistics of one rank would differ."""
    import torch

    parts = WORKLOAD.builders["torch"](dataclasses.replace(given, data=None))
    for module in parts.model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
            vars(module)["train"] = lambda mode=True, frozen=module: frozen
    return dataclasses.replace(parts, dataset=Numbers())


def main() -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    workload = dataclasses.replace(WORKLOAD, builders={"torch": build}, generate=Path)
    settings = Settings(
        "torch", steps=STEPS, batch_size=8 // world, image_size=SIZE, workers=0, lr=0.01
    )
    losses: list[float] = []
    job = prepare(workload, settings, Seat(Rank(rank, world)))
    job.train(lambda step, steps, loss: losses.append(loss))
    Path(sys.argv[1], f"{world}-{rank}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
