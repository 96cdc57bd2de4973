"""The models that the benchmarks of overhead train, and their training loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from block_costs import Took
from torch.utils.data import DataLoader, TensorDataset

LEAD_IN = 4
"""Untimed steps at the start of a block, while the loader starts and new hooks are cold."""


@dataclass(frozen=True)
class Case:
    """A model and its data. One call of `step` on a batch is one training step."""

    name: str
    model: torch.nn.Module
    inputs: torch.Tensor
    batch: int

    def loader(self, steps: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        count = self.batch * steps
        rows = self.inputs[torch.arange(count) % len(self.inputs)]
        return DataLoader(
            TensorDataset(rows, torch.zeros(count, dtype=torch.long)), batch_size=self.batch
        )


def make_cases(device: str = "cpu") -> list[Case]:
    torch.manual_seed(0)
    convolutions = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 10),
    )
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    attention = torch.nn.Sequential(
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    )
    tiny = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    attention(torch.zeros(2, 16, 64))
    cases = [
        Case("convolutions, about 20 ms", convolutions, torch.randn(14, 3, 112, 112), 14),
        Case("transformer, about 2 ms", attention, torch.randn(8, 16, 64), 8),
        Case("stress, below 1 ms", tiny, torch.randn(32, 128), 32),
    ]
    if device == "cuda":
        from torchvision.models import resnet50

        pictures = torch.randn(64, 3, 128, 128)
        cases.append(Case("ResNet50, batch 64", resnet50(num_classes=10), pictures, 64))
    return [Case(case.name, case.model.to(device), case.inputs, case.batch) for case in cases]


def train(
    case: Case,
    optimizer: torch.optim.Optimizer,
    steps: int,
    tell: Callable[[str], contextlib.AbstractContextManager[object]],
    ends: list[int] | None = None,
) -> Took:
    """Train one block of steps after its lead-in, and append their ends to `ends`."""
    loss_of = torch.nn.functional.cross_entropy
    start = busy = 0
    device = next(case.model.parameters()).device
    for number, batch in enumerate(case.loader(steps + LEAD_IN)):
        inputs, labels = (part.to(device) for part in batch)
        if number == LEAD_IN:
            start, busy = time.perf_counter_ns(), time.thread_time_ns()
        with tell("forward"):
            loss = loss_of(case.model(inputs), labels)
        with tell("backward"):
            loss.backward()
        with tell("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if ends is not None and number >= LEAD_IN:
            ends.append(time.perf_counter_ns())
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Took(
        (time.perf_counter_ns() - start) / 1e6 / steps, (time.thread_time_ns() - busy) / 1e6 / steps
    )
