"""Helpers that compare one architecture in two frameworks."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


def import_paddle() -> Any:
    """Import Paddle for the CPU, without its warnings and the variable that it sets."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        paddle: Any = pytest.importorskip("paddle")
    paddle.set_device("cpu")
    return paddle


def torch_size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def paddle_size(model: Any) -> int:
    return sum(
        int(np.prod(parameter.shape)) for parameter in model.parameters() if parameter.trainable
    )


def assert_close(a: npt.NDArray[Any], b: npt.NDArray[Any], share: float) -> None:
    """Nowhere apart by more than a share of the greatest value."""
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= share * np.abs(a).max()
