"""Measure a GPU with CuPy, which needs no framework with kernels for the device."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from profkit.analysis.ceilings import Ceilings

Rate = Callable[..., float]


def measure(side: int, size: int, rate: Rate) -> Ceilings | None:
    """Return the rates of the current device; `None` if CuPy sees none."""
    cupy: Any = importlib.import_module("cupy")
    try:
        if not cupy.cuda.is_available():
            return None
    except Exception:  # noqa: BLE001  # CuPy for CUDA 11 raises without a driver
        return None
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode(errors="replace")

    def rate_of(act: Callable[[], object], amount: float) -> float:
        return rate(lambda: (act(), device.synchronize()), amount)

    matrix = {}
    for precision, kind in (("fp32", cupy.float32), ("fp16", cupy.float16), ("fp64", cupy.float64)):
        left = cupy.ones((side, side), dtype=kind)
        multiply = functools.partial(cupy.matmul, left, left, out=cupy.empty_like(left))
        matrix[precision] = rate_of(multiply, 2.0 * side**3)
    source, target = cupy.ones(size, dtype=cupy.uint8), cupy.empty(size, dtype=cupy.uint8)
    copied = rate_of(lambda: cupy.copyto(target, source), 2.0 * size)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
    pageable = np.ones(size, dtype=np.uint8)
    to_device = {
        "pinned": rate_of(functools.partial(target.set, pinned), float(size)),
        "pageable": rate_of(functools.partial(target.set, pageable), float(size)),
    }
    return Ceilings(name, f"cupy {cupy.__version__}", matrix, copied, to_device)
