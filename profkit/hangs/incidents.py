"""The alarms of a run: each standstill that was seen while the job ran, and how it ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from profkit.hangs.status import FOLDER, LARGEST
from profkit.plain_file import read_plain

SUFFIX = ".alarms.jsonl"
SEEN, MOVED = "seen", "moved"
"""Events: a standstill is seen, with its verdict; the job moves again."""

ALARM = "alarm"
"""Level of a verdict that is a hang, unlike that of a part that may take long."""

MOST_BYTES = 16_000_000


def append_event(run: Path, host: str, event: Mapping[str, Any]) -> None:
    """Append one event in one write, so that a reader sees it whole or not at all."""
    path = run / FOLDER / f"{host}{SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    try:
        os.write(file, (json.dumps(event) + "\n").encode())
    finally:
        os.close(file)


def is_hung(run: Path) -> bool:
    """Return true if an alarm was raised in the run, and the job has not moved since."""
    is_open: dict[str, bool] = {}
    for event in read_events(run):
        verdict = event.get("verdict")
        if event["event"] == MOVED:
            is_open[event["source"]] = False
        elif isinstance(verdict, dict) and verdict.get("level") == ALARM:
            is_open[event["source"]] = True
    return any(is_open.values())


def read_events(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of all hosts, host by host; lines that are damaged are left out."""
    for path in sorted((run / FOLDER).glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError):
            for event in filter(None, read_lines(path)):
                yield {**event, "source": path.name}


def read_lines(path: Path) -> list[dict[str, Any] | None]:
    """Return the event of each line of a file; `None` for one that is damaged."""
    events: list[dict[str, Any] | None] = []
    for line in read_plain(path, MOST_BYTES).decode("utf-8", "replace").splitlines():
        event = None
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
        events.append(event if isinstance(event, dict) and is_whole(event) else None)
    return events


_VERDICT = {"class": str, "level": str, "text": str, "ranks": list, "places": dict, "missing": list}


def is_whole(event: Mapping[str, Any]) -> bool:
    """Return true if an event has what its readers need; a damaged line may have anything."""
    if event.get("event") == MOVED:
        stood_s = event.get("stood_s")
        return isinstance(stood_s, int | float) and abs(stood_s) < LARGEST
    verdict = event.get("verdict")
    if event.get("event") != SEEN or not isinstance(verdict, dict):
        return False
    if not all(isinstance(verdict.get(name), kind) for name, kind in _VERDICT.items()):
        return False
    return all(isinstance(place, dict) for place in verdict["places"].values())
