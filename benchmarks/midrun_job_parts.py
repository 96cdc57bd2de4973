"""Parts of `midrun_job.py` that work on the processor, as the jobs of others do.

How often something is repeated, and not a sleep, makes the change.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Sequence

import torch

MANY, SMALL = 400, 64
"""Small tensors that are averaged or updated one by one."""

UNEVEN_STEPS, UNEVEN_S = 40, 0.02
"""The first steps of a job are often longer, and each by another amount."""


def work_until(seconds: float, piece: Callable[[], object]) -> None:
    """Repeat a short piece of work for so long."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        piece()


def make_mask(batch: torch.Tensor, seconds: float) -> torch.Tensor:
    """Return a mask of a batch; the later loop takes longer."""
    mask = torch.ones_like(batch)
    rows = batch.tolist()
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for number, row in enumerate(rows):
            mask[number, 0] = float(max(row) > 0)
    return mask


def watch_gradients(parameters: Sequence[torch.Tensor], seconds: Callable[[], float]) -> None:
    """Look at each gradient once it is there."""
    share = 1 / len(parameters)

    def look(gradient: torch.Tensor) -> None:
        work_until(share * seconds(), lambda: gradient.abs().max().isfinite())

    for each in parameters:
        each.register_hook(look)


class Averages:
    """Moving averages of small weights, one by one, in a hook of the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, repeats: Callable[[], int]) -> None:
        self.weights = [torch.zeros(SMALL) for _ in range(MANY)]
        self.averages = [torch.zeros(SMALL) for _ in range(MANY)]
        self.repeats = repeats
        optimizer.register_step_post_hook(lambda *_: self.update())

    def update(self) -> None:
        for _ in range(self.repeats()):
            for average, weight in zip(self.averages, self.weights, strict=True):
                average.mul_(0.99)
                average.add_(weight, alpha=0.01)


def dump(state: object, times: int) -> None:
    """Write a state as some jobs do, without the framework."""
    for _ in range(times):
        pickle.dump(state, io.BytesIO())


def begin_unevenly(step: int) -> None:
    """Take a while longer in the first steps, each by another amount."""
    if step < UNEVEN_STEPS:
        time.sleep(UNEVEN_S * (37 * step % 101) / 101)


def many_small() -> list[torch.Tensor]:
    """Return weights with gradients, for an optimizer that updates them one by one."""
    found = [torch.zeros(SMALL, requires_grad=True) for _ in range(MANY)]
    for each in found:
        each.grad = torch.zeros(SMALL)
    return found
