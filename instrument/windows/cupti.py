"""Capture kernels with CUPTI, NVIDIA's own tracing library, through `cupti-python`.

Its records become the Chrome JSON that PyTorch's profiler writes of the same records, so that one
reader reads both. CUPTI knows launches and kernels, but no operators.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from profkit.clock import Anchor, read_anchor
from profkit.instrument.guard import report_failure
from profkit.instrument.windows.module_calls import ModuleCall

BUFFER_BYTES = 8 << 20
"""Size of a buffer for records; CUPTI asks for another when one is full."""

AS_MANY_AS_FIT = 0
"""The number of records that a buffer may hold."""

KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "RUNTIME", "DRIVER")

FORCED = 1
"""Have CUPTI hand over buffers that are not full."""

PACKAGE_MISSING = "the package cupti-python is not installed; pip install 'profkit[cupti]'"
NO_DRIVER = (
    "there is no NVIDIA driver here (libcuda.so.1); "
    "install the driver, or start the container with --gpus all"
)
OLD_DRIVER = (
    "the driver is older than this CUPTI; "
    "update the driver, or install the cupti-python of its CUDA"
)
_REMEDIES = {
    "ERROR_NOT_INITIALIZED": OLD_DRIVER,
    "ERROR_NOT_COMPATIBLE": OLD_DRIVER,
    "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "something else holds CUPTI, such as nsys, ncu "
    "or the framework's profiler; run without it, or with --kernels-from profiler",
    "ERROR_INSUFFICIENT_PRIVILEGES": "the driver keeps tracing for administrators; "
    "NVreg_RestrictProfilingToAdminUsers=0, or a container with --cap-add SYS_ADMIN",
    "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": "CUPTI does not trace this virtual GPU; "
    "use --kernels-from profiler on a whole one",
    "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": "the host does not let this virtual GPU "
    "be traced; have it switched on in the hypervisor",
}
"""Why CUPTI refuses and, behind a semicolon, what helps, by the name of its error."""

Watch = Callable[[Callable[[], None]], Callable[[], bool]]
"""Takes a function to call when the framework's profiler starts; returns a test if it runs."""

Event = dict[str, Any]
"""A record as in Chrome JSON, but with `start` and `end` of CUPTI's own clock, in ns."""

_MEMORY = {
    1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed", 6: "Device Static",
    7: "Managed Static",
}  # fmt: skip
"""CUPTI's kinds of memory, as torch.profiler writes them into the names of copies."""

_COPIES = {"HTOD": "HtoD", "DTOH": "DtoH", "DTOD": "DtoD", "PTOP": "PtoP", "HTOH": "HtoH"}


class NoCuptiError(Exception):
    """CUPTI cannot be used here; the message says why and, behind a semicolon, what helps."""


def load_cupti() -> ModuleType:
    """Return the bindings; raise a `NoCuptiError` if they are not installed."""
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise NoCuptiError(explain_refusal(error)) from error


class CuptiKernels:
    """CUPTI's records from `start` until `stop`, unless the job profiles itself.

    A record is gone when the call that hands it over returns. So it is converted there: mostly in
    `stop`, between two steps. That waits until the device has done its work, as the frameworks'
    profilers do at their end.
    """

    module_calls: Sequence[ModuleCall] = ()

    def __init__(
        self,
        watch: Watch,
        *,
        load: Callable[[], Any] = load_cupti,
        wait: Callable[[], object] = lambda: importlib.import_module(
            "cuda.bindings.driver"
        ).cuCtxSynchronize(),
    ) -> None:
        self._is_profiled = watch(self.give_up)
        self._load = load
        self._wait = wait
        self._cupti: Any = None
        self._running = False
        self._anchor = Anchor(0, 0, 0)
        self._events: list[Event] = []

    def start(self) -> bool:
        if self._is_profiled():
            return False
        cupti = self._cupti = self._cupti or self._load()
        self._events = []
        try:
            self._anchor = read_anchor(cupti.get_timestamp)
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, AS_MANY_AS_FIT), self._take)
            for kind in KINDS:
                cupti.activity_enable(getattr(cupti.ActivityKind, kind))
        except Exception as error:
            with contextlib.suppress(Exception):  # a refusal to start is one to end
                self._disable()
            raise NoCuptiError(explain_refusal(error)) from error
        self._running = True
        return True

    def stop(self) -> Callable[[Path], None] | None:
        if not self._running:
            return None
        self._end()
        return functools.partial(save_capture, events=self._events, anchor=self._anchor)

    def give_up(self) -> None:
        """Leave CUPTI to the job's own profiler: most drivers admit one user."""
        if self._running:
            self._end()
            self._cupti.finalize()

    def _end(self) -> None:
        self._running = False
        try:
            self._wait()
        finally:
            self._disable()
            self._cupti.activity_flush_all(FORCED)

    def _disable(self) -> None:
        for kind in KINDS:
            self._cupti.activity_disable(getattr(self._cupti.ActivityKind, kind))

    def _take(self, records: Iterable[Any]) -> None:
        """Keep records; CUPTI calls this, and must not see an exception."""
        try:
            for record in records:
                event = as_event(self._cupti, record)
                if event:
                    self._events.append(event)
        except Exception as error:  # noqa: BLE001  # the caller is written in C
            report_failure("the reading of CUPTI's records", error)


def explain_refusal(error: object) -> str:
    """Return what CUPTI's error means here, and what would help."""
    text = str(error)
    if "No module named 'cupti" in text:
        return PACKAGE_MISSING
    if "driver is not found" in text:
        return NO_DRIVER
    for name, remedy in _REMEDIES.items():
        if name in text:
            return remedy
    return f"CUPTI does not start: {error}"


def as_event(cupti: Any, record: Any) -> Event | None:
    """Convert one record; `None` for a kind that was not asked for."""
    kinds = cupti.ActivityKind
    if record.kind == kinds.CONCURRENT_KERNEL:
        launch_shape = {
            "grid": [record.grid_x, record.grid_y, record.grid_z],
            "block": [record.block_x, record.block_y, record.block_z],
            "registers per thread": record.registers_per_thread,
            "shared memory": record.static_shared_memory + record.dynamic_shared_memory,
        }
        return _device_event(record, "kernel", record.name, launch_shape)
    if record.kind in {kinds.MEMCPY, kinds.MEMCPY2}:
        name = "PTOP"  # a copy between devices has a kind of its own
        if record.kind == kinds.MEMCPY:
            name = cupti.ActivityMemcpyKind(record.copy_kind).name
        source, target = _memory(record.src_kind), _memory(record.dst_kind)
        name = f"Memcpy {_COPIES.get(name, name)} ({source} -> {target})"
        return _device_event(record, "gpu_memcpy", name, {"bytes": record.bytes})
    if record.kind == kinds.MEMSET:
        name = f"Memset ({_memory(record.memory_kind)})"
        return _device_event(record, "gpu_memset", name, {"bytes": record.bytes})
    if record.kind in {kinds.RUNTIME, kinds.DRIVER}:
        category = "cuda_runtime" if record.kind == kinds.RUNTIME else "cuda_driver"
        return {
            "cat": category,
            "name": category,
            "start": int(record.start),
            "end": int(record.end),
            "pid": record.process_id,
            "tid": record.thread_id,
            "args": {"correlation": record.correlation_id},
        }
    return None


def _memory(kind: int) -> str:
    return _MEMORY.get(int(kind), "Unknown")


def _device_event(record: Any, category: str, name: str, details: Mapping[str, Any]) -> Event:
    return {
        "cat": category,
        "name": name,
        "start": int(record.start),
        "end": int(record.end),
        "pid": record.device_id,
        "tid": record.stream_id,
        "args": {
            "device": record.device_id,
            "stream": record.stream_id,
            "correlation": record.correlation_id,
            **details,
        },
    }


def save_capture(path: Path, events: list[Event], anchor: Anchor) -> None:
    """Write the device's work and the calls that launched it.

    Work without an end was still running. It is excluded, and reported.
    """
    wanted = set()
    ended = []
    unfinished = 0
    for event in events:
        has_ended = bool(event["start"] and event["end"])
        if has_ended:
            ended.append(event)
        if "device" in event["args"]:
            wanted.add(event["args"]["correlation"])
            unfinished += not has_ended
    if unfinished:
        message = f"{unfinished} kernels or copies had not ended when it closed, and are left out"
        report_failure("a kernel window", RuntimeError(message))
    # Of a runtime call and the driver call inside it, the outer one counts.
    ended.sort(key=lambda event: event["start"])
    demangle = find_demangler()
    written = []
    for event in ended:
        if event["args"]["correlation"] in wanted:
            written.append(
                {
                    "ph": "X",
                    "cat": event["cat"],
                    "name": demangle(event["name"]),
                    "pid": event["pid"],
                    "tid": event["tid"],
                    "args": event["args"],
                    # A double holds times in us exactly.
                    "ts": (event["start"] - anchor.monotonic_ns) / 1000,
                    "dur": (event["end"] - event["start"]) / 1000,
                }
            )
    document = {"baseTimeNanoseconds": anchor.realtime_ns, "traceEvents": written}
    path.write_text(json.dumps(document), encoding="utf-8")


def find_demangler() -> Callable[[str], str]:
    """Return a function that makes C++ names readable, as the kernel categories know them.

    It is one of the library that frameworks load. Without that library names stay as they are.
    """
    try:
        demangle, free = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"], ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return str
    demangle.argtypes, demangle.restype = [ctypes.c_char_p, *[ctypes.c_void_p] * 3], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None

    @functools.cache
    def readable(name: str) -> str:
        if not name.startswith("_Z"):
            return name
        made = demangle(name.encode(), None, None, None)
        if not made:
            return name
        text = ctypes.string_at(made).decode(errors="replace")
        free(made)
        return text

    return readable
