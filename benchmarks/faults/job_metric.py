"""Metric learning in PyTorch: batch norm, triplets, and an optimizer class of its own.

The job has one process, or ranks under torchrun. Its data set is an array in memory, from which a
sampler of its own draws as many images of each class.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from job_parts import (
    Mishaps,
    Options,
    OwnClock,
    is_due,
    parse,
    read_options,
    wait_for_storage,
)
from torch.nn import functional as nn_functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

RANK = int(os.environ.get("RANK", "0"))
CLASSES, IMAGES, SIDE = 8, 256, 28


class Images(Dataset[Any]):
    """Small images of a few classes, which Python code looks through."""

    def __init__(self, options: Options) -> None:
        rng = np.random.default_rng(options.seed)
        self.options = options
        self.pixels = rng.integers(0, 255, (IMAGES, 3, SIDE, SIDE), dtype=np.uint8)

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        wait_for_storage(self.options)
        parse(self.pixels[index, 0].flatten().tolist(), self.options.parsing - 1)
        return self.pixels[index].astype(np.float32) / 255, index % CLASSES


class Balanced(Sampler[list[int]]):
    """Batches with as many images of each class, without end."""

    def __init__(self, options: Options) -> None:
        self.batch = options.batch
        self.rng = np.random.default_rng([options.seed, RANK])

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            rows = self.rng.integers(0, IMAGES // CLASSES, self.batch)
            yield [int(row) * CLASSES + place % CLASSES for place, row in enumerate(rows)]


class SignMomentum(torch.optim.Optimizer):
    """Steps by the sign of the momentum: for all tensors at once, or for one after the other."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, at_once: bool) -> None:
        super().__init__(parameters, {"lr": 1e-4, "momentum": 0.9})
        self.at_once = at_once

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            used = [each for each in group["params"] if each.grad is not None]
            means = [self._mean(each) for each in used]
            rest = 1 - group["momentum"]
            if self.at_once:
                torch._foreach_lerp_(means, [each.grad for each in used], rest)
                steps = torch._foreach_sign(means)  # noqa: SLF001
                torch._foreach_add_(used, steps, alpha=-group["lr"])
                continue
            for parameter, mean in zip(used, means, strict=True):
                for new, old, value in zip(
                    parameter.grad.reshape(-1).chunk(16),
                    mean.view(-1).chunk(16),
                    parameter.view(-1).chunk(16),
                    strict=True,
                ):
                    old.lerp_(new, rest)
                    trust = min(10.0, 1 + value.norm().item())
                    value.add_(old.sign(), alpha=-group["lr"] * trust)

    def _mean(self, parameter: torch.Tensor) -> torch.Tensor:
        state = self.state[parameter]
        if "mean" not in state:
            state["mean"] = torch.zeros_like(parameter)
        mean: torch.Tensor = state["mean"]
        return mean


def _block(into: int, out: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False),
        torch.nn.BatchNorm2d(out),
        torch.nn.LeakyReLU(0.1),
    )


class Embedder(torch.nn.Module):
    """Maps an image to a point on a sphere."""

    def __init__(self, options: Options, mishaps: Mishaps) -> None:
        super().__init__()
        width = options.width
        middle = [
            torch.nn.Sequential(
                torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
                torch.nn.BatchNorm2d(width),
                torch.nn.ReLU(),
            )
            for _ in range(options.layers)
        ]
        self.body = torch.nn.Sequential(_block(3, width), *middle, _block(width, 2 * width))
        self.head = torch.nn.Linear(2 * width, 32)
        self.mishaps = mishaps

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mishaps.late("forward")
        hidden = self.body(images)
        if self.training and hidden.requires_grad:
            hidden.register_hook(self._late)
        return nn_functional.normalize(self.head(hidden.mean((2, 3))), dim=1)

    def _late(self, gradient: torch.Tensor) -> None:
        self.mishaps.late("backward")


def triplet_loss(points: torch.Tensor, classes: torch.Tensor, *, one_by_one: bool) -> torch.Tensor:
    """Return the loss of the hardest triplets."""
    distances = torch.cdist(points, points)
    same = classes[:, None] == classes[None, :]
    if not one_by_one:
        far = distances.masked_fill(~same, 0).amax(1)
        near = distances.masked_fill(same, 9).amin(1)
        return torch.relu(far - near + 0.2).mean()
    losses = []
    for row in range(len(points)):
        far, near = distances[row, row], distances[row, row] + 9
        for column in range(len(points)):
            if same[row, column]:
                far = torch.maximum(far, distances[row, column])
            else:
                near = torch.minimum(near, distances[row, column])
        losses.append(torch.relu(far - near + 0.2))
    return torch.stack(losses).mean()


def delayed(options: Options) -> Callable[[object, Any], Any]:
    """Return an exchange over a link that adds time to each bucket."""

    def arrive(done: Any) -> Any:
        time.sleep(options.delay_ms / 1e3)
        return done.value()[0]

    def exchange(state: object, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(arrive)

    exchange.__annotations__ = {}  # DDP expects classes here, but annotations are text
    return exchange


class Experiment:
    """The model, the data, and one method per part of a step."""

    def __init__(self, options: Options) -> None:
        self.options, self.clock = options, OwnClock()
        self.mishaps = Mishaps(options, self.clock, RANK)
        self.inner = Embedder(options, self.mishaps)
        if options.float64:
            self.inner = self.inner.double()
        self.model: Any = self.inner
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
            caps: dict[str, Any] = {"bucket_cap_mb": options.bucket_mb}
            self.model = DistributedDataParallel(self.inner, **caps)
            if options.delay_ms:
                self.model.register_comm_hook(None, delayed(options))
        self.optimizer = SignMomentum(self.inner.parameters(), at_once=options.optimizer == "fused")
        self.images = Images(options)
        self.batches = iter(
            DataLoader(self.images, batch_sampler=Balanced(options), num_workers=options.workers)
        )

    def fit(self) -> None:
        for step in range(self.options.steps):
            loss = self._step()
            self._between(step)
            self.mishaps.after_step(step, loss)
            self.clock.end_step()

    def _step(self) -> float:
        options, clock = self.options, self.clock
        self.mishaps.late("before_batch")
        loss = torch.zeros(())
        for micro in range(options.accumulate):
            images, classes = self._batch()
            is_apart = options.no_sync and micro < options.accumulate - 1
            is_apart = is_apart and isinstance(self.model, DistributedDataParallel)
            with self.model.no_sync() if is_apart else contextlib.nullcontext():
                with clock.time("forward"):
                    points = self.model(images)
                    loss = triplet_loss(points, classes, one_by_one=options.mining)
                with clock.time("backward"):
                    (loss / options.accumulate).backward()
        self.mishaps.before_step()
        with clock.time("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        with self.clock.time("data"):
            images, classes = next(self.batches)
        if self.options.float64:
            images = images.double()
        with self.clock.time("planted"):
            for _ in range(self.options.copies):
                images = images.double().contiguous().clone().float()
        return images, classes

    def _between(self, step: int) -> None:
        options = self.options
        with self.clock.time("planted"):
            if is_due(step, options.evaluate_every) and RANK == 0:
                self._evaluate()
            if is_due(step, options.checkpoint_every) and RANK == 0:
                self._save()

    def _evaluate(self) -> None:
        """Embed some images; only the first rank does."""
        self.inner.eval()
        loader = DataLoader(self.images, batch_size=32)
        with torch.no_grad():
            for number, (images, _) in enumerate(loader):
                self.inner(images)
                if number == 3:  # a few batches are enough
                    break
        self.inner.train()

    def _save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ballast = torch.zeros(self.options.checkpoint_mb * 250_000)
            state = {"model": self.inner.state_dict(), "more": ballast}
            torch.save(state, Path(folder, "embedder.pt"))


def main() -> None:
    options = read_options()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    experiment = Experiment(options)
    experiment.fit()
    experiment.clock.write(RANK)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
