"""A profiler of the simulated accelerator: it writes the Chrome JSON that torch's would write."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profkit.clock import read_anchor
from profkit.instrument.windows.module_calls import ModuleCall
from tests.accelerator.devices import Device
from tests.accelerator.moments import Moment

CALL_NS = 1_000


class SimulatedProfiler:
    """Notes the launches of a device, as a `KernelProfiler`; `start_ns` is what a border costs."""

    module_calls: Sequence[ModuleCall] = ()

    def __init__(self, device: Device, border_ns: int = 0) -> None:
        self._device, self._border_ns = device, border_ns
        self._launch = device.launch
        self._noted: list[tuple[str, int, int, Moment]] = []
        self._modules: Any = None

    def start(self) -> bool:
        from profkit.instrument.frameworks.pytorch.module_calls import ModuleCalls

        self._device.host.work(self._border_ns)
        self._noted = []
        self._device.launch = self._note  # type: ignore[method-assign]
        self._modules = ModuleCalls(self._device.host)
        self._modules.begin()
        return True

    def stop(self) -> Callable[[Path], None]:
        self._modules.end()
        self.module_calls = self._modules.calls
        self._device.launch = self._launch  # type: ignore[method-assign]
        self._device.host.wait_for(self._device.last_launched)
        self._device.host.work(self._border_ns)
        return functools.partial(_save, noted=self._noted, thread=threading.get_native_id())

    def leaves_nothing(self) -> bool:
        return True

    def _note(self, duration_ns: int, name: str = "kernel") -> Moment:
        # The driver's call is the end of a launch. It ends a little early here, because the anchors
        # of two clocks differ by a microsecond.
        taken = self._device.launch_ns
        launched = self._device.host() + max(taken // 2, taken - 3 * CALL_NS)
        done = self._launch(duration_ns, name)
        self._noted.append((name, launched, duration_ns, done))
        return done


def _save(path: Path, *, noted: Sequence[tuple[str, int, int, Moment]], thread: int) -> None:
    events: list[dict[str, Any]] = []
    for number, (name, launched, duration_ns, done) in enumerate(noted, start=1):
        if done.ns is None:
            continue
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": os.getpid()}
        work = {"cat": "kernel", "name": name, "pid": 0, "tid": 7}
        events += [
            _event(call | {"tid": thread}, launched, CALL_NS, {"correlation": number}),
            _event(
                work,
                done.ns - duration_ns,
                duration_ns,
                {"correlation": number, "device": 0, "stream": 7},
            ),
        ]
    anchor = read_anchor()  # the file's clock is the virtual one
    base = anchor.realtime_ns - anchor.monotonic_ns
    path.write_text(json.dumps({"baseTimeNanoseconds": base, "traceEvents": events}))


def _event(given: dict[str, Any], start_ns: int, length_ns: int, args: Any) -> dict[str, Any]:
    return {"ph": "X", "ts": start_ns / 1e3, "dur": length_ns / 1e3, "args": args, **given}
