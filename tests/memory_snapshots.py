"""An allocator with PyTorch's rules, which writes snapshots and knows the truth of each moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MB = 1 << 20
Frames = Sequence[tuple[str, str] | tuple[str, str, int]]
TORCH = "/usr/lib/python3.11/site-packages/torch/"
MODEL = [(f"{TORCH}nn/modules/module.py", "_apply")]
MODULE = [("/home/alice/job/net.py", "forward"), (f"{TORCH}nn/modules/module.py", "_call_impl")]
ATTENTION = [("/home/alice/job/attention.py", "forward"), MODULE[1]]
BACKWARD = [
    ("Functions.cpp", "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>)"),
    ("??", "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask>)"),
]
STEP = [(f"{TORCH}optim/adamw.py", "step")]
FIRST = [(f"{TORCH}optim/adamw.py", "_init_group"), *STEP]
RESET = [(f"{TORCH}optim/optimizer.py", "zero_grad")]
CALL = [(f"{TORCH}autograd/__init__.py", "backward")]


@dataclass
class Truth:
    """What is held after an event: bytes by purpose, all reserved bytes, and unused ones."""

    purposes: Counter[str]
    reserved: int
    holes: int
    free: int


@dataclass
class Allocator:
    """Best fit, whole segments, divided blocks. `history` is the number of events to keep."""

    history: int = 10**9
    segments: dict[int, int] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)
    used: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    most: int = 1 << 60
    """The memory of the device."""
    error: type[Exception] = MemoryError
    records: bool = True
    reserved: int = 0
    """Segments so far, each at an address of its own."""
    observers: list[Callable[..., object]] = field(default_factory=list)

    def malloc(self, size: int, purpose: str, frames: Frames = ()) -> int:
        rounded = max(512, -(-size // 512) * 512)
        is_small = rounded <= MB
        fits = []
        for at, room in self.free.items():
            if room >= rounded and (self._segment_of(at)[1] == 2 * MB) == is_small:
                fits.append((room, at))
        if not fits:
            room = 2 * MB if is_small else max(20 * MB, -(-rounded // (2 * MB)) * 2 * MB)
            left = self.most - sum(self.segments.values())
            if room > left:
                self.fail(size, left, frames)
                for observe in self.observers:
                    observe(0, room, self.most, left)
                raise self.error(f"CUDA out of memory. Tried to allocate {size:,} bytes.")
            self.reserved += 1
            fits = [(room, self.reserved << 34)]
            self.segments[fits[0][1]] = room
            self._note("segment_alloc", fits[0][1], room, frames)
        room, at = min(fits)
        self.free.pop(at, None)
        left = room - rounded
        if left >= 512 if is_small else left > MB:
            self.free[at + rounded] = left
            room = rounded
        self.used[at] = (room, size, purpose)
        self._note("alloc", at, size, frames)
        return at

    def release(self, at: int, frames: Frames = ()) -> None:
        room, size, _ = self.used.pop(at)
        self._note("free_requested", at, size, frames)
        low, segment = at, self._segment_of(at)
        for start, length in list(self.free.items()):
            if segment[0] <= start < sum(segment) and start + length == low:
                del self.free[start]
                low, room = start, room + length
        if low + room < sum(segment):
            room += self.free.pop(low + room, 0)
        self.free[low] = room
        self._note("free_completed", at, size, frames)

    def empty_cache(self) -> None:
        for at, size in list(self.segments.items()):
            if self.free.get(at) == size:
                del self.segments[at], self.free[at]
                self._note("segment_free", at, size, ())

    def fail(self, size: int, device_free: int, frames: Frames) -> None:
        self._note("oom", 0, size, frames)
        if self.records:
            self.events[-1]["device_free"] = device_free

    def peak(self) -> Truth:
        return max(self.truths[-self.history - 1 :], key=lambda truth: truth.purposes.total())

    def snapshot(self) -> dict[str, Any]:
        segments = []
        for at, size in sorted(self.segments.items()):
            blocks = []
            for start, room in self.free.items():
                blocks.append((start, {"size": room, "state": "inactive"}))
            for start, (room, asked, _) in self.used.items():
                state = {"state": "active_allocated", "requested_size": asked, "frames": []}
                blocks.append((start, {"size": room, **state}))
            own = sorted(each for each in blocks if at <= each[0] < at + size)
            segment = {"device": 0, "address": at, "total_size": size, "is_expandable": False}
            segments.append({**segment, "blocks": [each for _, each in own]})
        return {"segments": segments, "device_traces": [self.events[-self.history :]]}

    def _segment_of(self, at: int) -> tuple[int, int]:
        return next((low, n) for low, n in self.segments.items() if low <= at < low + n)

    def _note(self, action: str, at: int, size: int, frames: Frames) -> None:
        said = []
        for file, name, *line in frames:
            said.append({"filename": file, "name": name, "line": (*line, 7)[0]})
        event = {"action": action, "addr": at, "size": size, "stream": 0, "frames": said}
        if not self.records:
            return
        self.events.append(event)
        purposes: Counter[str] = Counter()
        busy = set()
        for start, (room, _, purpose) in self.used.items():
            purposes[purpose] += room
            busy.add(self._segment_of(start)[0])
        free = sum(size for low, size in self.segments.items() if low not in busy)
        reserved = sum(self.segments.values())
        holes = reserved - free - purposes.total()
        self.truths.append(Truth(purposes, reserved, holes, free))


def train(
    allocator: Allocator,
    parameters: Sequence[int],
    steps: int,
    *,
    cpp: bool = True,
    length: int = 0,
) -> None:
    """Train a model of these tensors with AdamW: memory as torch takes it, step by step.

    With a length, activations grow with it, and those of attention with its square.
    """
    backward = BACKWARD if cpp else []
    for size in parameters:
        allocator.malloc(size, "parameters", MODEL)
    for step in range(steps):
        kept = []
        for size in parameters:
            kept.append(allocator.malloc(2 * size * max(1, length), "activations", MODULE))
            if length:
                scores = allocator.malloc(size * length**2 // 4, "activations", ATTENTION)
                kept.append(scores)
            allocator.release(allocator.malloc(size // 2, "forward", MODULE), MODULE)
        allocator.release(allocator.malloc(4, "other", CALL), CALL)
        gradients = []
        for size in reversed(parameters):
            other = allocator.malloc(3 * size, "backward", backward)
            gradients.append(allocator.malloc(size, "gradients", backward))
            allocator.release(other, backward)
            for _ in range(1 + bool(length)):
                allocator.release(kept.pop(), backward)
        for size in (*parameters, *parameters) if step == 0 else ():
            allocator.malloc(size, "optimizer", FIRST)
        for size in parameters:
            allocator.release(allocator.malloc(size, "step", STEP), STEP)
        for at in gradients if step + 1 < steps else ():
            allocator.release(at, RESET)


def stand_in(allocator: Allocator, put: Callable[..., object] = setattr) -> None:
    """Replace the names of torch that profkit uses, as if a device were in use from now on."""
    import torch

    def record(enabled: str | None = "all", **_: object) -> None:
        allocator.events.clear()
        allocator.records = enabled is not None

    memory, core = torch.cuda.memory, torch._C
    put(memory, "_record_memory_history", record)
    put(memory, "_snapshot", allocator.snapshot)
    put(core, "_cuda_attach_out_of_memory_observer", allocator.observers.append)
    put(core, "_cuda_isHistoryEnabled", lambda: allocator.records)
    for begin, _ in torch.cuda._queued_calls:  # torch calls them when the device is first used
        if begin.__module__.startswith("profkit."):
            begin()
