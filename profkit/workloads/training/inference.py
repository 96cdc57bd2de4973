"""Runs a trained model on numpy arrays, for evaluation in both frameworks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Predict = Callable[[Floats], Floats]


@contextlib.contextmanager
def torch_predictor(model: Any) -> Iterator[Predict]:
    """The model in evaluation mode where it lies; back in the mode it was in at the end."""
    import torch

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield lambda images: model(torch.from_numpy(images).to(device)).float().cpu().numpy()
    finally:
        model.train(was_training)


@contextlib.contextmanager
def paddle_predictor(model: Any) -> Iterator[Predict]:
    """As `torch_predictor`."""
    import paddle

    place = model.parameters()[0].place
    was_training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            yield (
                lambda images: (
                    model(paddle.to_tensor(images, place=place)).astype("float32").numpy()
                )
            )
    finally:
        if was_training:
            model.train()
