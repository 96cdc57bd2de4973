"""The models of the small sharded jobs."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

WIDTH = int(os.environ.get("SHARDED_WIDTH", "64"))
BLOCKS, BATCH, MICROBATCHES = 3, 8, 4
FLOAT = 4


class Block(nn.Module):
    """A layer that can be split by columns, then by rows."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.sleep_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        added: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + added


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def bytes_of(module: nn.Module) -> int:
    return FLOAT * sum(parameter.numel() for parameter in module.parameters())
