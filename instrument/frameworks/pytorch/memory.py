"""Snapshots of torch's allocator: of a window of steps, and when it runs out of memory.

A failure is written unasked: it ends most jobs, and to have it again takes a second run. Until then
that costs nothing. Outside of a window no history is recorded, so that such a snapshot has the
allocator's blocks without their stacks. A job that records a history itself gets no snapshot of
ours: its own may have gigabytes.
"""

# ruff: noqa: SLF001  # the allocator's history has no public name

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from profkit.clock import now_ns
from profkit.instrument.guard import guarded
from profkit.instrument.rows import Row, SampleRow
from profkit.instrument.windows.module_calls import ModuleCall
from profkit.instrument.windows.windows import Window
from profkit.vocab import MEMORY, MEMORY_AT_FAILURE, MEMORY_OF_WINDOW, MEMORY_STEPS

MOST_EVENTS = 100_000
"""A step has some 10,000. Each takes about a KB of the host's memory; older ones are dropped."""

LONGEST_FAILURES_S = 5.0
"""Jobs may try sizes until one fits. The last failure is kept until all took this long."""

JOIN_S = 5.0
"""The end of a job waits this long for a snapshot to be written."""

_C: Any = torch._C
_MEMORY: Any = torch.cuda.memory
Snapshot = dict[str, Any]


class MemoryHistory:
    """The history of the allocator in a window; `start` and `stop` are called between steps."""

    module_calls: Sequence[ModuleCall] = ()

    def __init__(self, run: Path, rank: Callable[[], int], *, from_start: bool = False) -> None:
        self._run = run
        self._rank = rank
        self._from_start = from_start
        self._is_recording = False
        self._left_s = LONGEST_FAILURES_S
        self._writer: threading.Thread | None = None
        self.is_known = False
        """True once torch has an allocator with a history."""
        self.note: Callable[[str], object] = lambda why: None
        """Called with the reason if a window is not recorded."""
        torch.cuda._lazy_call(guarded("memory", self._attach, None))

    def _attach(self) -> None:
        """Follow the allocators of all devices; torch calls this when it has made them."""
        with contextlib.suppress(RuntimeError):  # from allocators other than torch's own
            _C._cuda_attach_out_of_memory_observer(guarded("memory", self._on_failure, None))
            self.is_known = True
            if self._from_start:
                self.start()

    def start(self) -> bool:
        if self._is_recording or not self.is_known:
            return self._is_recording
        if _C._cuda_isHistoryEnabled():
            self.note("the job records a history itself")
            return False
        # Stacks of C++ would have to be looked up in torch's libraries, which takes minutes.
        _MEMORY._record_memory_history("all", stacks="python", max_entries=MOST_EVENTS)
        self._is_recording = True
        return True

    def stop(self) -> Callable[[Path], None] | None:
        if not self._is_recording:
            return None
        self._is_recording = False
        try:
            snapshot = _MEMORY._snapshot()
        finally:
            _MEMORY._record_memory_history(None)
        return lambda path: self._write(MEMORY_OF_WINDOW, snapshot)

    def read_rows(self, path: Path, window: Window) -> list[Row]:
        """Return that there is a snapshot; a report reads the file itself."""
        return [SampleRow(None, MEMORY, MEMORY_STEPS, now_ns(), float(len(window.borders) - 1))]

    def finish(self) -> None:
        """Wait until a failure is written."""
        if self._writer is not None:
            self._writer.join(JOIN_S)

    def _on_failure(self, device: int, size: int, total: int, free: int) -> None:
        """Take a snapshot; torch calls this on the thread whose allocation fails."""
        if self._left_s <= 0 or (_C._cuda_isHistoryEnabled() and not self._is_recording):
            return
        began = time.monotonic()
        snapshot = _MEMORY._snapshot()
        traces = snapshot["device_traces"]
        while len(traces) <= device:
            traces.append([])
        if not self._is_recording:
            frames = list(_frames(sys._getframe(2)))  # behind the guard
            event = {"action": "oom", "size": size, "device_free": free, "frames": frames}
            traces[device].append(event)
        self._left_s -= time.monotonic() - began
        self._writer = threading.Thread(
            target=guarded("memory", self._write, None),
            args=(MEMORY_AT_FAILURE, snapshot, self._writer),
            name="profkit-memory",
            daemon=True,
        )
        self._writer.start()

    def _write(self, name: str, snapshot: Snapshot, before: threading.Thread | None = None) -> None:
        """Write a snapshot as torch would; a failure may come before the rank has a folder."""
        if before is not None:
            before.join()
        name_classes(snapshot)
        if not self._run.is_dir():
            return  # of a job that starts its own run, and that has not trained yet
        path = self._run / f"{name}-{self._rank():05}.pickle"
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(partial, flags, 0o600), "wb") as file:
            pickle.dump(snapshot, file)
        partial.replace(path)


def _frames(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield the callers of the allocator as torch describes them."""
    while frame is not None:
        code = frame.f_code
        yield {"filename": code.co_filename, "name": code.co_name, "line": frame.f_lineno}
        frame = frame.f_back


def name_classes(snapshot: Snapshot) -> None:
    """Add the class to the name of each module's `forward`, as `Block.forward`."""
    rows: list[dict[str, Any]] = []
    for trace in snapshot["device_traces"]:
        rows.extend(trace)
    for segment in snapshot["segments"]:
        rows.extend(segment["blocks"])
    forwards, seen = _find_forwards(), set[int]()
    for row in rows:
        for frame in row.get("frames") or ():
            if frame["name"] != "forward" or id(frame) in seen:
                continue
            seen.add(id(frame))
            for first, last, name in forwards.get(frame["filename"], ()):
                if first <= frame["line"] <= last:
                    frame["name"] = f"{name}.forward"


def _find_forwards() -> dict[str, list[tuple[int, int, str]]]:
    """Return the first and last line of each module's `forward` and its class, by file."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for kind in _subclasses(torch.nn.Module):
        code = getattr(inspect.unwrap(vars(kind).get("forward", _subclasses)), "__code__", None)
        if code is not None:
            last = code.co_firstlineno
            for _, _, line in code.co_lines():
                last = max(last, line or 0)
            place = code.co_firstlineno, last, kind.__qualname__
            found.setdefault(code.co_filename, []).append(place)
    return found


def _subclasses(kind: type) -> Iterator[type]:
    direct: list[type] = kind.__subclasses__()
    for each in direct:
        yield each
        yield from _subclasses(each)
