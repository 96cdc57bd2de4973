"""Read the stacks that were written while no Python code could run, or at a crash."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profkit.collectors._origins import Origins
from profkit.hangs.status import RUNNING, STACK_SUFFIX, SUFFIX, Frame, Status
from profkit.plain_file import open_plain
from profkit.vocab import OWN_CODE, PYTHON_CODE

MOST_STACK_BYTES = 1_000_000
_REPORT = re.compile(r"(?m)^(?:Timeout \(|(Fatal Python error: ))")
_THREAD = re.compile(r"(?m)^(?:(Current thread)|Thread) 0x")
_LINE = re.compile(r'(?m)^  File "(.*)", line (\d{1,9}) in (.*)$')
_ORIGINS = Origins()
_PYTHON = re.compile(r"/lib(64)?/python3[^/]*/(?!(site|dist)-packages/)")


@dataclass(frozen=True)
class FaultReport:
    """The stack of a thread, and whether a signal that ended the process had it written."""

    frames: tuple[Frame, ...]
    is_crash: bool


def read_fault_stacks(folder: Path, ranks: Mapping[int, Status]) -> dict[int, FaultReport]:
    """Return the reports of ranks that have said no end themselves."""
    reports = {}
    for rank, status in ranks.items():
        report = read_fault_stack(folder, status)
        if status.state == RUNNING and report is not None:
            reports[rank] = report
    return reports


def read_fault_stack(folder: Path, status: Status) -> FaultReport | None:
    """Return the last stack that the fault handler wrote, if it is newer than the status."""
    path = folder / status.file_name.replace(SUFFIX, STACK_SUFFIX)
    known = status.stack_bytes
    try:
        with open_plain(path) as file:
            look = os.fstat(file.fileno())
            is_newer = look.st_mtime_ns >= status.written_ns
            if known is not None:
                is_newer = look.st_size > known
            if not is_newer or look.st_size - (known or 0) > MOST_STACK_BYTES:
                return None
            file.seek(known or 0)
            text = file.read(MOST_STACK_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    reports = list(_REPORT.finditer(text))
    is_crash = bool(reports and reports[-1][1])
    last = text[reports[-1].end() :] if reports else text
    frames = []
    for file, line, function in _LINE.findall(choose_thread(last, is_crash=is_crash)):
        if origin_of(file):
            frames.append(Frame(file, function, int(line), origin_of(file)))
    if not frames:
        return None
    return FaultReport(tuple(frames), is_crash)


def choose_thread(report: str, *, is_crash: bool) -> str:
    """Return the part about the thread that crashed, or else about the main thread.

    The main thread is the last one. If a thread without Python code crashes, none is the current.
    """
    parts = list(_THREAD.finditer(report))
    if not parts:
        return report
    chosen = len(parts) - 1
    for number, part in enumerate(parts):
        if is_crash and part[1]:
            chosen = number
    end = parts[chosen + 1].start() if chosen + 1 < len(parts) else len(report)
    return report[parts[chosen].end() : end]


def origin_of(file: str) -> str:
    """Return whose code a file of any machine is; empty for profkit's own."""
    if "-packages/profkit/" in file:
        return OWN_CODE if "-packages/profkit/workloads/" in file else ""
    origin = _ORIGINS.of(file)
    return PYTHON_CODE if origin == OWN_CODE and _PYTHON.search(file) else origin
