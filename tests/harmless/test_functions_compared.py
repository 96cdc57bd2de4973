"""Code that compares functions does the same while hooks are in their place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker


@contextmanager
def hooks(times: int) -> Iterator[None]:
    """Install the hooks, and others over them."""
    installed = []
    for _ in range(times):
        sink = MemorySink()
        seams = Seams(Tracker(Recorder(sink)), sink.appender("collectives"))
        installed.append(FRAMEWORK.install(seams))
    try:
        yield
    finally:
        for patches in reversed(installed):
            patches.undo()


@pytest.mark.parametrize("times", [1, 2])
def test_a_lazy_module_can_be_moved_before_its_shapes_are_known(times: int) -> None:
    with hooks(times):
        model = torch.nn.Sequential(torch.nn.LazyLinear(4)).to(torch.float64)
        assert model(torch.ones(2, 3, dtype=torch.float64)).shape == (2, 4)


@pytest.mark.parametrize("times", [1, 2])
def test_an_image_of_torchvision_stays_one(times: int) -> None:
    tv_tensors = pytest.importorskip("torchvision.tv_tensors", exc_type=ImportError)
    image = tv_tensors.Image(torch.ones(3, 4, 4))
    with hooks(times):
        assert type(image.to(torch.float64)) is type(image)


def test_tables_are_as_before_afterwards() -> None:
    allowed = getattr(torch.nn.UninitializedParameter, "_allowed_methods")  # noqa: B009  # untyped
    before = list(allowed)
    with hooks(1):
        assert len(allowed) > len(before)
    assert allowed == before
