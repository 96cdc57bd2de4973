"""Loops as those of PaddleVideo, PaddleClas and PaddleSeg, each with its profiler module.

`train_suites.py [bare]`: with `bare`, everything is trained before profkit is loaded.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

warnings.simplefilter("ignore")

import paddle  # noqa: E402  # it warns as it is imported

from profkit.callbacks import paddle_suite  # noqa: E402

ITERATIONS, UPDATE_EVERY = 8, 2


def train(
    batches: Iterable[Any],
    before: Callable[..., None] | None,
    after: Callable[..., None] | None,
    options: str | None,
) -> list[float]:
    """One pass; optimizers step every other time."""
    paddle.seed(0)
    model = paddle.nn.Linear(16, 4)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    losses = []
    for number, (images, labels) in enumerate(batches):
        if before:
            before(options)
        loss = paddle.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        if number % UPDATE_EVERY == UPDATE_EVERY - 1:
            optimizer.step()
            optimizer.clear_grad()
        if after:
            after(options)
        losses.append(float(loss))
    return losses


def main() -> None:
    paddle.seed(0)
    tensors = paddle.randn([4 * ITERATIONS, 16]), paddle.randint(0, 4, [4 * ITERATIONS])
    loader = paddle.io.DataLoader(paddle.io.TensorDataset(list(tensors)), batch_size=4)
    in_memory = [
        (tensors[0][start : start + 4], tensors[1][start : start + 4])
        for start in range(0, 4 * ITERATIONS, 4)
    ]
    bare = (
        [train(batches, None, None, None) for batches in (loader, in_memory)]
        if "bare" in sys.argv
        else []
    )
    video = importlib.import_module("paddlevideo.utils.profiler")
    globals()["add_profiler_step"] = (
        video.add_profiler_step
    )  # as PaddleVideo's loop has it: by its name
    patches = [paddle_suite.install(), paddle_suite.install()]
    clas, seg = (
        importlib.import_module(name)
        for name in ("ppcls.utils.profiler", "paddleseg.utils.train_profiler")
    )
    losses = [
        train(loader, globals()["add_profiler_step"], None, None),
        train(loader, clas.add_profiler_step, None, "batch_range=[1, 2]"),
        train(loader, None, seg.add_profiler_step, None),
        train(in_memory, paddle_suite.add_profiler_step, None, None),
    ]
    theirs = [(len(module.CALLS), module.CALLS[0]) for module in (video, clas, seg)]
    for handle in patches:
        handle.undo()
    undone = [type(module.add_profiler_step).__name__ for module in (video, clas, seg)]
    print(
        "training:",
        json.dumps({"losses": losses, "theirs": theirs, "undone": undone, "bare": bare}),
    )


if __name__ == "__main__":
    main()
