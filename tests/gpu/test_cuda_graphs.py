"""A job that captures CUDA graphs is recorded, and its captures stay whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from profkit.instrument.captures import CAPTURES
from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.frameworks.pytorch.device import CudaDevice
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.rows import SpanRow
from profkit.instrument.tracking.tracker import Tracker
from profkit.vocab import MissingTime


@contextmanager
def writer(timer: DeviceTimer) -> Iterator[None]:
    """Ask for the device's times all the time, as the writer's thread does twice a second."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            timer.collect()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_capture_succeeds_while_the_writer_asks(mode: str) -> None:
    sink = MemorySink()
    recorder = Recorder(sink)
    timer = DeviceTimer(CudaDevice(), sink.appender("spans"))
    recorder.time_device(timer)
    patches = FRAMEWORK.install(Seams(Tracker(recorder), sink.appender("collectives")))
    try:
        model = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(64, 512, device="cuda")

        def train() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(inputs).square().mean().backward()
            optimizer.step()

        with writer(timer):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(5):
                    train()
            torch.cuda.current_stream().wait_stream(side)
            for _ in range(10):
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, capture_error_mode=mode):
                    train()
                graph.replay()
                train()
        torch.cuda.synchronize()
        timer.collect(final=True)
    finally:
        patches.undo()
    assert CAPTURES.open == 0
    assert timer.missing[MissingTime.CAPTURE] > 0
    assert timer.missing[MissingTime.FAILED] == 0
    spans = [SpanRow(*row) for row in sink.rows["spans"]]
    timed = [row for row in spans if row.phase == "backward" and row.device_end_ns is not None]
    assert len(timed) >= 10, "the steps outside of the captures have device times"
