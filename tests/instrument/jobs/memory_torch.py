"""Trains on a stand-in for torch's allocator of a device, which has too little memory for a step.

Arguments: the size of a batch, and the number of the step that fails.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from tests.memory_snapshots import CALL, FIRST, MB, MODEL, STEP, Allocator, stand_in

WIDTH, STEPS = 64, 8
BATCH, FAILING = map(int, sys.argv[1:])
DEVICE = Allocator(most=400 * MB, error=torch.OutOfMemoryError, records=False)


def take(size: int) -> int:
    """Allocate memory for the caller's line."""
    frames: list[tuple[str, str, int]] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return DEVICE.malloc(size, "", frames)


def give_up(held: int) -> None:
    """Compute a gradient, as the engine's thread does, which has no frames of Python."""
    temporary = DEVICE.malloc(MB, "")
    DEVICE.release(held)
    DEVICE.release(temporary)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH) / WIDTH)
        DEVICE.malloc(4 * MB, "", MODEL)
        self.weight.register_hook(lambda gradient: gradients.append(DEVICE.malloc(4 * MB, "")))

    def forward(self, inputs: Any) -> Any:
        outputs = inputs @ self.weight
        held = take(len(inputs) * MB)
        outputs.register_hook(lambda gradient: give_up(held))
        return outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, inputs: Any) -> Any:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


def update(optimizer: Any, args: Any, options: Any) -> None:
    if not states:
        states.extend(DEVICE.malloc(4 * MB, "", FIRST) for _ in range(8))
    DEVICE.release(DEVICE.malloc(MB, "", STEP), STEP)


stand_in(DEVICE)
gradients: list[int] = []
states: list[int] = []
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
optimizer.register_step_pre_hook(update)
sizes = [BATCH * (200 if step == FAILING else 1) for step in range(STEPS)]
batches: Any = [torch.ones(size, WIDTH) for size in sizes]
for inputs in torch.utils.data.DataLoader(batches, batch_size=None):
    loss = model(inputs).square().mean()
    DEVICE.release(DEVICE.malloc(4, "", CALL), CALL)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    while gradients:
        DEVICE.release(gradients.pop())
    print(loss.item().hex())
