"""Device phases agree with CUPTI's own kernel times, and the hot path does not wait."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.instrument.device import DeviceTimer
from profkit.instrument.frameworks.base import Seams
from profkit.instrument.frameworks.pytorch import FRAMEWORK
from profkit.instrument.frameworks.pytorch.device import CudaDevice
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.instrument.tracking.tracker import Tracker
from profkit.run.lookout.device_look import DeviceLook
from profkit.vocab import ZERO_GRAD

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Hooked:
    """A loop with hooks and a device timer, its rows in memory."""

    sink: MemorySink
    timer: DeviceTimer
    step: Callable[[], None]
    optimizer: torch.optim.Optimizer

    def settle(self) -> None:
        """Do the writer thread's work until all rows are complete.

        The test may wait; the hooks may not.
        """
        torch.cuda.synchronize()
        self.timer.collect()

    def spans(self, phase: str) -> list[tuple[Any, ...]]:
        """Return the rows of a phase, except resets of gradients."""
        rows = self.sink.rows["spans"]
        return [row for row in rows if row[1] == phase and row[2] != ZERO_GRAD]

    def resets(self) -> list[tuple[Any, ...]]:
        return [row for row in self.sink.rows["spans"] if row[2] == ZERO_GRAD]


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    sink = MemorySink()
    recorder = Recorder(sink)
    timer = DeviceTimer(CudaDevice(), sink.appender("spans"))
    timer.collect()
    recorder.time_device(timer)
    patches = FRAMEWORK.install(Seams(Tracker(recorder), sink.appender("collectives")))
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(12)),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    ).cuda()  # with its shapes unknown, as lazy modules are moved
    inputs = torch.randn(64, 64, 56, 56, device="cuda")
    model(inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        with torch.profiler.record_function("forward"):
            loss = model(inputs).square().mean()
        with torch.profiler.record_function("backward"):
            loss.backward()
        with torch.profiler.record_function("optimizer"):
            optimizer.step()
        optimizer.zero_grad()

    yield Hooked(sink, timer, step, optimizer)
    patches.undo()


def _kernel_spans(trace: Path) -> dict[str, list[float]]:
    """Return the microseconds from the first kernel's start to the last one's end.

    There is one value per phase and step. A kernel belongs to the phase that launched it.
    """
    events = json.loads(trace.read_text())["traceEvents"]
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e.get("cat") == "user_annotation" and e["name"] in PHASES
    )
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in e.get("args", {})
    }
    found: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for event in events:
        if event.get("cat") in {"kernel", "gpu_memset", "gpu_memcpy"} and (
            launched := launches.get(event["args"].get("correlation"))
        ):
            around = [span for span in ranges if span[0] <= launched <= span[1]]
            if around:
                found.setdefault((around[-1][0], around[-1][2]), []).append(
                    (event["ts"], event["ts"] + event["dur"])
                )
    lengths: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for (_, phase), kernels in sorted(found.items()):
        lengths[phase].append(max(end for _, end in kernels) - min(start for start, _ in kernels))
    return lengths


def test_each_phase_is_as_long_on_the_device_as_its_kernels_say(
    hooked: Hooked, tmp_path: Path
) -> None:
    for _ in range(10):
        hooked.step()
    hooked.settle()
    before = {phase: len(hooked.spans(phase)) for phase in PHASES}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profiler:
        for _ in range(20):
            hooked.step()
        hooked.settle()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    kernels = _kernel_spans(tmp_path / "trace.json")
    for phase in PHASES:
        ours = statistics.median(
            (row[8] - row[7]) / 1e3 for row in hooked.spans(phase)[before[phase] :]
        )
        theirs = statistics.median(kernels[phase])
        assert abs(ours - theirs) <= max(0.02 * theirs, 50), (phase, ours, theirs)


def test_nothing_on_the_hot_path_synchronises(hooked: Hooked) -> None:
    hooked.step()
    hooked.settle()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            hooked.step()
            hooked.timer.collect()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_pool_of_events_is_bounded(hooked: Hooked) -> None:
    for _ in range(200):
        hooked.step()
        hooked.timer.collect()
    hooked.settle()
    assert hooked.timer.pool_size <= 4096
    assert hooked.timer.missing.total() == 0
    grown = hooked.timer.pool_size
    for _ in range(50):
        hooked.step()
        hooked.settle()
    assert hooked.timer.pool_size <= grown


def test_device_times_lie_on_the_hosts_clock(hooked: Hooked) -> None:
    for _ in range(5):
        hooked.step()
        hooked.settle()
        time.sleep(0.01)
    for row in hooked.spans("optimizer"):
        assert row[7] is not None
        assert row[8] >= row[7]
        assert row[8] >= row[5] - 200_000, "the device ended before the host began"


def test_a_reset_that_fills_gradients_takes_as_long_as_the_fills(hooked: Hooked) -> None:
    """The device spins before each reset, so that it never waits for the host's launches."""
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    hooked.step()
    hooked.settle()
    before = len(hooked.resets())
    lengths = []
    for _ in range(10):
        hooked.step()
        for parameter in hooked.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        torch.cuda._sleep(20_000_000)  # torch has no public spin
        started.record()
        hooked.optimizer.zero_grad(set_to_none=False)
        ended.record()
        hooked.settle()
        lengths.append(started.elapsed_time(ended) * 1e3)
    hooked.step()
    hooked.settle()
    filled = [(row[8] - row[7]) / 1e3 for row in hooked.resets()[before:]]
    longest = sorted(filled, reverse=True)[: len(lengths)]
    assert statistics.median(longest) == pytest.approx(statistics.median(lengths), abs=20)


def test_events_are_recorded_on_the_stream_in_use() -> None:
    device = CudaDevice()
    busy, idle = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(2):  # the second time, the streams are known
        with torch.cuda.stream(busy):
            torch.cuda._sleep(1_000_000_000)  # torch has no public spin
            (late := device.make_event()).record()
        with torch.cuda.stream(idle):
            (soon := device.make_event()).record()
        (own := device.make_event()).record()
        idle.synchronize()
        torch.cuda.current_stream().synchronize()
        assert [event.done() for event in (soon, own, late)] == [True, True, False]
        busy.synchronize()
        assert late.done()


def test_a_device_that_spins_is_seen_to_be_behind() -> None:
    timer, look = DeviceTimer(CudaDevice(), MemorySink().appender("spans")), DeviceLook()
    timer.drop(timer.mark())  # now its stream is known
    torch.cuda.synchronize()
    assert look.behind_s(timer) == pytest.approx(0, abs=0.1)
    torch.cuda._sleep(3_000_000_000)  # torch has no public spin
    look.forget()
    look.behind_s(timer)
    time.sleep(0.5)
    assert look.behind_s(timer) == pytest.approx(0.5, abs=0.1)
    torch.cuda.synchronize()
    assert look.behind_s(timer) == pytest.approx(0, abs=0.1)
