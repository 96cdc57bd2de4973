"""NVIDIA's own tracing library, CUPTI, through the package `cupti-python`, for windows of steps in any framework.

Its records become the Chrome JSON that PyTorch's profiler writes of the same records, so that one
reader makes rows of both. It knows launches and kernels, but no operators.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from profkit.clock import Anchor, read_anchor
from profkit.instrument.guard import report_failure

BUFFER_BYTES = 8 << 20
"""What CUPTI is given for records at a time; it asks again when one is full."""

KINDS = ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "RUNTIME", "DRIVER")

FORCED = 1
"""Buffers are handed over though they are not full."""

PACKAGE_MISSING = "the package cupti-python is not installed; pip install 'profkit[cupti]'"
NO_DRIVER = "there is no NVIDIA driver here (libcuda.so.1); install the driver, or start the container with --gpus all"
_WHY_NOT = {
    "ERROR_NOT_INITIALIZED": "the driver is older than this CUPTI; update the driver, or install the cupti-python of its CUDA",
    "ERROR_NOT_COMPATIBLE": "the driver is older than this CUPTI; update the driver, or install the cupti-python of its CUDA",
    "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED": "something else holds CUPTI, such as nsys, ncu or the framework's profiler; "
    "run without it, or with --kernels-from profiler",
    "ERROR_INSUFFICIENT_PRIVILEGES": "the driver keeps tracing for administrators; NVreg_RestrictProfilingToAdminUsers=0, or a container with --cap-add SYS_ADMIN",
    "ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED": "CUPTI does not trace this virtual GPU; use --kernels-from profiler on a whole one",
    "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": "the host does not let this virtual GPU be traced; have it switched on in the hypervisor",
}

Watch = Callable[[Callable[[], None]], Callable[[], bool]]
"""Takes what is to be called when the framework's own profiler starts, and gives what tells whether it runs."""

Event = dict[str, Any]
"""A record as Chrome JSON has it, but for its time: `start` and `end` are CUPTI's own, in ns."""

_COPIES = {"HTOD": "HtoD", "DTOH": "DtoH", "DTOD": "DtoD", "PTOP": "PtoP", "HTOH": "HtoH"}


class NoCuptiError(Exception):
    """CUPTI cannot be used here; the message says why and, behind a semicolon, what would help."""


def load_cupti() -> ModuleType:
    """The bindings; a `NoCuptiError` where they are not installed."""
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise NoCuptiError(explain_refusal(error)) from error


def wait_for_device() -> None:
    """Until the device has done what this thread's context was given, as the frameworks' profilers do where they end."""
    importlib.import_module("cuda.bindings.driver").cuCtxSynchronize()


class CuptiKernels:
    """CUPTI's records from `start` until `stop`. What the job profiles itself goes first: `give_up` leaves CUPTI to it.

    A record is gone when the call that hands it over returns, so it is made plain there: mostly in `stop`, between two steps.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        load: Callable[[], Any] = load_cupti,
        wait: Callable[[], None] = wait_for_device,
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
            cupti.activity_register_callbacks(_offer_buffer, self._take)
            for kind in KINDS:
                cupti.activity_enable(getattr(cupti.ActivityKind, kind))
        except Exception as error:
            with contextlib.suppress(Exception):  # what refuses to start refuses to end, too
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
        """The job begins to profile itself: let go of CUPTI, of which most drivers admit one user."""
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
        """Called by CUPTI, through which nothing may be raised."""
        try:
            self._events.extend(
                event for record in records if (event := as_event(self._cupti, record))
            )
        except Exception as error:  # noqa: BLE001  # the border to a library written in C
            report_failure("the reading of CUPTI's records", error)


def _offer_buffer() -> tuple[int, int]:
    """How many bytes a buffer has, and how many records it may hold at most: 0 is as many as fit."""
    return BUFFER_BYTES, 0


def explain_refusal(error: object) -> str:
    """In words what CUPTI's error means here, and what would help."""
    if "No module named 'cupti" in str(error):
        return PACKAGE_MISSING
    if "driver is not found" in str(error):
        return NO_DRIVER
    return next(
        (words for name, words in _WHY_NOT.items() if name in str(error)),
        f"CUPTI does not start: {error}",
    )


def as_event(cupti: Any, record: Any) -> Event | None:
    """One record; `None` for one of a kind that was not asked for."""
    kinds = cupti.ActivityKind
    if record.kind == kinds.CONCURRENT_KERNEL:
        return _on_device(record, "kernel", record.name, _shape(record))
    if record.kind in {kinds.MEMCPY, kinds.MEMCPY2}:
        return _on_device(
            record, "gpu_memcpy", f"Memcpy {_direction(cupti, record)}", {"bytes": record.bytes}
        )
    if record.kind == kinds.MEMSET:
        return _on_device(record, "gpu_memset", "Memset", {"bytes": record.bytes})
    if record.kind in {kinds.RUNTIME, kinds.DRIVER}:
        category = "cuda_runtime" if record.kind == kinds.RUNTIME else "cuda_driver"
        place = {"pid": record.process_id, "tid": record.thread_id}
        return {
            "cat": category,
            "name": category,
            **_times(record),
            **place,
            "args": {"correlation": record.correlation_id},
        }
    return None


def _on_device(record: Any, category: str, name: str, more: Mapping[str, Any]) -> Event:
    args = {
        "device": record.device_id,
        "stream": record.stream_id,
        "correlation": record.correlation_id,
        **more,
    }
    return {
        "cat": category,
        "name": name,
        **_times(record),
        "pid": record.device_id,
        "tid": record.stream_id,
        "args": args,
    }


def _times(record: Any) -> dict[str, int]:
    return {"start": int(record.start), "end": int(record.end)}


def _shape(record: Any) -> dict[str, Any]:
    return {
        "grid": [record.grid_x, record.grid_y, record.grid_z],
        "block": [record.block_x, record.block_y, record.block_z],
        "registers per thread": record.registers_per_thread,
        "shared memory": record.static_shared_memory + record.dynamic_shared_memory,
    }


def _direction(cupti: Any, record: Any) -> str:
    """As the taxonomy spells it; a copy between devices has a record of its own kind."""
    name = (
        "PTOP"
        if record.kind == cupti.ActivityKind.MEMCPY2
        else cupti.ActivityMemcpyKind(record.copy_kind).name
    )
    return _COPIES.get(name, name)


def save_capture(path: Path, events: list[Event], anchor: Anchor) -> None:
    """Write the device's work and the calls that launched it. Work without an end was still running, and is told of."""
    work = [event for event in events if "device" in event["args"]]
    unfinished = sum(not _ended(event) for event in work)
    if unfinished:
        report_failure(
            "a kernel window",
            RuntimeError(
                f"{unfinished} kernels or copies had not ended when it closed, and are left out"
            ),
        )
    wanted = {event["args"]["correlation"] for event in work}
    kept = [event for event in events if _ended(event) and event["args"]["correlation"] in wanted]
    kept.sort(
        key=lambda event: event["start"]
    )  # of a runtime call and the driver call inside it, the outer one counts
    document = {
        "baseTimeNanoseconds": anchor.realtime_ns,
        "traceEvents": list(_as_chrome(kept, anchor.monotonic_ns)),
    }
    path.write_text(json.dumps(document), encoding="utf-8")


def _ended(event: Mapping[str, Any]) -> bool:
    return bool(event["start"] and event["end"])


def _as_chrome(events: Iterable[Event], origin: int) -> Iterator[dict[str, Any]]:
    plain = find_demangler()
    for event in events:
        times = {
            "ts": _microseconds(event["start"] - origin),
            "dur": _microseconds(event["end"] - event["start"]),
        }
        yield {
            "ph": "X",
            "cat": event["cat"],
            "name": plain(event["name"]),
            "pid": event["pid"],
            "tid": event["tid"],
            "args": event["args"],
            **times,
        }


def _microseconds(ns: int) -> float:
    """Exact: a double holds three decimals of a window's microseconds."""
    return ns / 1000


def find_demangler() -> Callable[[str], str]:
    """What makes C++ names readable, as the taxonomy knows them: a function of the library that frameworks load. Without it names stay as they are."""
    try:
        demangle, free = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"], ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return str
    demangle.argtypes, demangle.restype = [ctypes.c_char_p, *[ctypes.c_void_p] * 3], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None

    @functools.cache
    def plain(name: str) -> str:
        made = demangle(name.encode(), None, None, None) if name.startswith("_Z") else None
        readable = ctypes.string_at(made).decode(errors="replace") if made else name
        free(made)
        return readable

    return plain
