"""Rates of a GPU by CuPy, which needs no framework: also where torch has no kernels for the device."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from profkit.analysis.ceilings import Ceilings

Rate = Callable[..., float]


def measure(side: int, size: int, rate: Rate) -> Ceilings | None:
    """The rates of the current device; `None` where CuPy sees none."""
    cupy: Any = importlib.import_module("cupy")
    try:
        if not cupy.cuda.is_available():
            return None
    except Exception:  # noqa: BLE001  # without a driver, CuPy for CUDA 11 raises where later ones answer
        return None
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode(errors="replace")

    def done(act: Callable[[], object]) -> Callable[[], object]:
        return lambda: (act(), device.synchronize())

    matrix = {}
    for precision, kind in (("fp32", cupy.float32), ("fp16", cupy.float16), ("fp64", cupy.float64)):
        left = cupy.ones((side, side), dtype=kind)
        matrix[precision] = rate(
            done(functools.partial(cupy.matmul, left, left, out=cupy.empty_like(left))),
            2.0 * side**3,
        )
    source, target = cupy.ones(size, dtype=cupy.uint8), cupy.empty(size, dtype=cupy.uint8)
    copied = rate(done(lambda: cupy.copyto(target, source)), 2.0 * size)
    return Ceilings(
        name, f"cupy {cupy.__version__}", matrix, copied, _to_device(cupy, target, size, rate, done)
    )


def _to_device(
    cupy: Any, target: Any, size: int, rate: Rate, done: Callable[..., Any]
) -> dict[str, float]:
    pageable = np.ones(size, dtype=np.uint8)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)
    sources = {"pinned": pinned, "pageable": pageable}
    return {
        name: rate(done(functools.partial(target.set, source)), float(size))
        for name, source in sources.items()
    }
