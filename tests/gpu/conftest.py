"""These tests need a CUDA device; `make gpu` runs them on a machine that has one."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, where torch finds no device."""
    import torch

    if torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:  # torch warns of its profiler and of its debug mode
                item.add_marker(pytest.mark.filterwarnings("default"))
        return
    skip = pytest.mark.skip(reason="no CUDA device here; 'make gpu' runs these where there is one")
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(skip)
