"""A snapshot of PyTorch's allocator: its segments at the end, and its last events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profkit.analysis.memory.stacks import NO_STACK, Frame, Stack, read_frame, read_stack

MOST_ROWS = 5_000_000
"""Events and blocks of a file. More would be lists that a hostile file repeats."""
_MOST_FRAMES = 4_096
_LARGEST = 2**62
_ACTIVE = "active_allocated"
_STATES = frozenset([_ACTIVE, "active_pending_free", "active_awaiting_free", "inactive"])


@dataclass(frozen=True)
class Block:
    """A part of a segment that is in use, or was freed and waits for another stream."""

    address: int
    size: int
    requested: int
    is_pending: bool
    stack: Stack


@dataclass(frozen=True)
class Event:
    """One call of the allocator. The size is as the caller asked for it, before rounding."""

    action: str
    address: int
    size: int
    stack: Stack


@dataclass
class DeviceMemory:
    """One device at the end of the recording, and its events before, oldest first."""

    device: int
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Reserved ranges: the first address, and the one behind the last."""
    blocks: list[Block] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    is_expandable: bool = False


class SnapshotError(ValueError):
    """The place in a snapshot that is not as PyTorch writes it."""


def read_snapshot(content: Any) -> list[DeviceMemory]:
    """Return each device that has memory or events; raise `SnapshotError` for anything else."""
    if not isinstance(content, dict) or "segments" not in content:
        raise SnapshotError("no snapshot of PyTorch's memory: it has no segments")
    reader = _Reader()
    for place, each in enumerate(_list(content, "segments", "")):
        reader.read_segment(each, f"segments[{place}]")
    for device, events in enumerate(_list(content, "device_traces", "", [])):
        reader.read_events(device, events)
    if not reader.found:
        raise SnapshotError("it has no segment and no event: nothing was allocated")
    return [reader.found[device] for device in sorted(reader.found)]


class _Reader:
    """Reads rows up to a limit. Each stack, which many rows share, is read once."""

    def __init__(self) -> None:
        self.found: dict[int, DeviceMemory] = {}
        self._left = MOST_ROWS
        self._stacks: dict[int, Stack] = {}
        self._frames: dict[int, Frame] = {}

    def read_segment(self, found: Any, place: str) -> None:
        start = at = _number(found, "address", place)
        size = _number(found, "total_size", place)
        device = _number(found, "device", place, 0)
        memory = self.found.setdefault(device, DeviceMemory(device))
        for number, block in enumerate(_list(found, "blocks", place)):
            inside = f"{place}.blocks[{number}]"
            length = _number(block, "size", inside)
            if _number(block, "address", inside, at) != at or not length:
                raise SnapshotError(f"{inside} does not follow the block before it")
            state = block.get("state")
            if not isinstance(state, str) or state not in _STATES:
                raise SnapshotError(f"{inside} has a state that is not known")
            if state != "inactive":
                requested = _number(block, "requested_size", inside, length)
                stack = self._stack(block)
                memory.blocks.append(Block(at, length, requested, state != _ACTIVE, stack))
            at += length
        if at != start + size:
            raise SnapshotError(f"the blocks of {place} have {at - start:,} bytes of {size:,}")
        memory.segments.append((start, at))
        memory.is_expandable = memory.is_expandable or bool(found.get("is_expandable"))

    def read_events(self, device: int, events: Any) -> None:
        if not isinstance(events, list):
            raise SnapshotError(f"device_traces[{device}] is no list")
        for number, each in enumerate(events):
            inside = f"device_traces[{device}][{number}]"
            action = each.get("action") if isinstance(each, dict) else None
            if not isinstance(action, str):
                raise SnapshotError(f"{inside} has no action")
            address = _number(each, "device_free" if action == "oom" else "addr", inside, 0)
            event = Event(action, address, _number(each, "size", inside, 0), self._stack(each))
            self.found.setdefault(device, DeviceMemory(device)).events.append(event)

    def _stack(self, row: dict[str, Any]) -> Stack:
        self._left -= 1
        if self._left < 0:
            raise SnapshotError(f"more than {MOST_ROWS:,} blocks and events")
        frames = row.get("frames")
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = read_stack(map(self._frame, frames[:_MOST_FRAMES]))
        return self._stacks[id(frames)]

    def _frame(self, frame: Any) -> Frame:
        if id(frame) not in self._frames:
            found = frame if isinstance(frame, dict) else {}
            texts = str(found.get("filename", "")), str(found.get("name", ""))
            self._frames[id(frame)] = read_frame(*texts, str(found.get("line", ""))[:9])
        return self._frames[id(frame)]


def _list(found: Any, key: str, place: str, default: Any = None) -> list[Any]:
    value = found.get(key, default) if isinstance(found, dict) else None
    if not isinstance(value, list):
        raise SnapshotError(f"{place}.{key} is no list".removeprefix("."))
    return value


def _number(found: Any, key: str, place: str, default: int | None = None) -> int:
    value = found.get(key, default) if isinstance(found, dict) else None
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise SnapshotError(f"{place}.{key} is no number of bytes or address")
    return value
