"""The training loop that the PyTorch workloads share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from profkit.instrument.recorder import LoopRecorder
from profkit.vocab import Phase
from profkit.workloads._base import Outcome

Tell = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Trainer:
    """A model with its loader, loss and optimizer, ready for its first step.

    `move` copies a batch to the device, `loss_of` runs model and loss on it, `count` says how many
    samples it has.
    """

    model: torch.nn.Module
    loader: Iterable[Any]
    optimizer: torch.optim.Optimizer
    move: Callable[[Any], Any]
    loss_of: Callable[[Any], torch.Tensor]
    count: Callable[[Any], int]

    def train(self, steps: int, recorder: LoopRecorder, tell: Tell) -> Outcome:
        """Train for `steps` steps, over as many epochs as that takes."""
        losses: list[float] = []
        self.model.train()
        recorder.begin()
        for epoch, batch in self._batches(recorder):
            losses.append(self._step(batch, epoch, recorder))
            with recorder.phase(Phase.OTHER, "progress"):
                tell(len(losses), steps, losses[-1])
            if len(losses) == steps:
                break
        return Outcome(len(losses), losses[0], losses[-1])

    def _batches(self, recorder: LoopRecorder) -> Iterator[tuple[int, Any]]:
        for epoch in itertools.count():
            for batch in recorder.batches(self.loader):
                yield epoch, batch

    def _step(self, batch: Any, epoch: int, recorder: LoopRecorder) -> float:
        with recorder.step(self.count(batch), epoch=epoch) as step:
            with recorder.phase(Phase.H2D):
                batch = self.move(batch)
            with recorder.phase(Phase.FORWARD):
                loss = self.loss_of(batch)
            with recorder.phase(Phase.BACKWARD):
                loss.backward()
            with recorder.phase(Phase.OPTIMIZER):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
            step.loss = loss.item()
        return step.loss


def seed_everything(seed: int) -> torch.Generator:
    """Make the run repeatable; the generator that is returned is for the loader."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # what transforms of others draw from
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def move_tensors(batch: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    return [tensor.to(device, non_blocking=True) for tensor in batch]
