"""Run `profkit trace` while another clock times the same steps, for real_runs.py.

    OWN_CLOCK=folder/name python benchmarks/timed_trace.py resnet50 --steps 60 ...

Torch's own classes are wrapped before profkit is imported: waiting for a batch, the model's
forward, the part of backward after the last gradient (the exposed exchange), and the step. Each
rank writes its steps to `OWN_CLOCK.RANK.json`, which profkit never reads. With `LATE_SHARE`, the
last rank is delayed before each forward by that share of a healthy step.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.optim.optimizer import register_optimizer_step_post_hook

HEALTHY_STEPS = 10
"""The warm-up. After it one rank is delayed, by a share of the time that these steps took."""

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class OwnClock:
    """Seconds of this rank's steps by part; `starts_epoch` marks steps that open a loader."""

    def __init__(self, late_share: float) -> None:
        self._late_share = late_share
        self._step: dict[str, float] = {}
        self._began = self._last_gradient = time.perf_counter()
        self._delay_s = 0.0
        self._last_weight: torch.nn.Parameter | None = None
        """The first layer's weight, whose gradient comes last."""
        self.steps: list[dict[str, float]] = []

    def add(self, part: str, seconds: float) -> None:
        self._step[part] = self._step.get(part, 0.0) + seconds

    def end_step(self, *_: object) -> None:
        now = time.perf_counter()
        self.add("step", now - self._began)
        self.steps.append(self._step)
        self._step, self._began = {}, now
        if len(self.steps) == HEALTHY_STEPS and RANK == WORLD_SIZE - 1:
            self._delay_s = self._late_share * statistics.median(
                step["step"] for step in self.steps
            )

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the loader's batches with their waiting times. The first one opens the loader."""
        self.add("starts_epoch", 1.0)
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.add("input", time.perf_counter() - began)
            yield batch

    def forward(
        self, model: torch.nn.Module, run: Callable[[Any], Any], images: torch.Tensor
    ) -> Any:
        began = time.perf_counter()
        if self._last_weight is None:
            self._last_weight = next(model.parameters())
            self._last_weight.register_post_accumulate_grad_hook(self._note_last_gradient)
        time.sleep(self._delay_s)
        result = run(images)
        self.add("forward", time.perf_counter() - began)
        return result

    def _note_last_gradient(self, _: torch.Tensor) -> None:
        self._last_gradient = time.perf_counter()

    def backward(self, run: Callable[..., None], *args: Any, **options: Any) -> None:
        run(*args, **options)
        self.add("exchange", time.perf_counter() - self._last_gradient)


def install(clock: OwnClock) -> None:
    """Wrap the functions that the loop calls."""
    forward, backward, iterate = (
        torchvision.models.ResNet.forward,
        torch.autograd.backward,
        torch.utils.data.DataLoader.__iter__,
    )
    torchvision.models.ResNet.forward = lambda model, images: clock.forward(
        model, functools.partial(forward, model), images
    )
    torch.autograd.backward = functools.partial(clock.backward, backward)

    def batches(loader: Any) -> Any:  # a generator works in place of an iterator here
        return clock.batches(iter(iterate(loader)))

    torch.utils.data.DataLoader.__iter__ = batches  # type: ignore[method-assign]
    register_optimizer_step_post_hook(clock.end_step)


def time_dali(clock: OwnClock) -> None:
    from profkit.workloads.resnet50.dali import DaliBatches

    iterate = DaliBatches.__iter__
    # DALI's batches are timed from outside.
    DaliBatches.__iter__ = (  # type: ignore[method-assign]
        lambda batches: clock.batches(iterate(batches))
    )


def main() -> int:
    clock = OwnClock(float(os.environ.get("LATE_SHARE", "0")))
    install(clock)
    from profkit.cli import main as profkit

    time_dali(clock)
    code = profkit(["trace", *sys.argv[1:]])
    Path(f"{os.environ['OWN_CLOCK']}.{RANK}.json").write_text(json.dumps(clock.steps))
    return code


if __name__ == "__main__":
    sys.exit(main())
