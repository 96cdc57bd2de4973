"""Runs as profkit writes them on a GPU: the host launches ahead, and the device lags behind.

The times of a step follow from the arguments. The host reads the loss at the end of a step, after
its last phase, so each step begins with an idle device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profkit.clock import now_ns, read_anchor, wall_ns
from profkit.instrument.buckets import EXPOSED
from profkit.instrument.device import DeviceTimer
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import Append, CollectiveRow, Event, Row
from profkit.testing import OpenStep
from profkit.trace import RankManifest, RankWriter, RunManifest
from profkit.trace.integrity import this_process
from profkit.trace.writer import no_rows
from profkit.vocab import MissingTime, Phase, RunState

MS = 1_000_000
WARM_UP = 5
DATA_NS, H2D_NS = MS // 10, 2 * MS
H2D_LAUNCH_NS = MS // 20
FORWARD_LAUNCH_NS, BACKWARD_LAUNCH_NS, OPTIMIZER_LAUNCH_NS = 3 * MS, 4 * MS, MS


def jitter_ns(step: int) -> int:
    """Return what the forward of a step takes more than its shortest, on all ranks."""
    return (step * 7919 % 13) * MS // 13


@dataclass(frozen=True)
class Plan:
    """One rank's job. `tail_ns` is the exchange that nothing hides, in the backward.

    `tail` says what profkit records of it: `device`, `host` as once for NCCL, or nothing.
    """

    ranks: int = 1
    steps: int = 60
    forward_ns: int = 30 * MS
    backward_ns: int = 60 * MS
    optimizer_ns: int = 5 * MS
    tail_ns: int = 0
    tail: str = "device"
    late_ns: Mapping[int, int] = field(default_factory=dict)
    """What the forward of single ranks takes longer; the others wait as long in their tail."""
    without_anchor: Collection[int] = ()
    """Ranks that never find an idle stream."""
    anchored_from: int = 0
    """The first step with an anchor."""
    unmarked: Collection[int] = ()
    """Steps in which no event was left."""
    silent: bool = False
    """True for a run that does not record why times are missing, as older ones."""
    control: Callable[[int], bool] = lambda step: False

    def device_ns(self, used: Collection[int]) -> dict[str, float]:
        """Return the mean time of each phase over all ranks, on the device, in these steps."""
        jitter = sum(map(jitter_ns, used)) / len(used)
        late = sum(self.late_ns.values()) / self.ranks
        waited = max(self.late_ns.values(), default=0) - late
        found = {
            "data": DATA_NS,
            "h2d": H2D_NS + H2D_LAUNCH_NS,
            "forward": self.forward_ns + jitter + late,
            "backward": self.backward_ns,
            "optimizer": self.optimizer_ns,
            "unknown": 0,
        }
        if self.tail_ns or self.late_ns:
            where = "allreduce" if self.tail == "device" else "backward"
            found[where] = found.get(where, 0) + self.tail_ns + waited
        return found


@dataclass
class _Machine:
    """The host's clock and the time at which the device has done all of its work."""

    plan: Plan
    rank: int
    host: int = field(default_factory=now_ns)
    stream: int = 0
    step: int = 0

    def clock(self) -> int:
        return self.host

    def launch(self, launch_ns: int, device_ns: int) -> None:
        self.stream = max(self.stream, self.host) + device_ns
        self.host += launch_ns

    def make_event(self) -> Event:
        return _Event(self)

    def is_capturing(self) -> bool:
        return False

    def mark_streams(self) -> list[Event]:
        return []

    def reach_idle_event(self, clock: Callable[[], int]) -> tuple[Event, int, int] | None:
        if self.rank in self.plan.without_anchor or self.step < self.plan.anchored_from:
            return None
        return _Event(self, self.host), self.host, 0


@dataclass
class _Event:
    machine: _Machine
    reached: int = 0

    def record(self) -> None:
        self.reached = max(self.machine.stream, self.machine.host)

    def done(self) -> bool:
        return True

    def ns_since(self, earlier: Any) -> float:
        return float(self.reached - earlier.reached)


class _Timer(DeviceTimer):
    """A timer without events in the planned steps."""

    def __init__(self, machine: _Machine, spans: Append, samples: Append, events: Append) -> None:
        silent = machine.plan.silent
        super().__init__(
            machine,
            spans,
            clock=machine.clock,
            samples=None if silent else samples,
            events=None if silent else events,
        )
        self._machine = machine

    def mark(self) -> Event | None:
        if self._machine.step in self._machine.plan.unmarked:
            self.missing[MissingTime.POOL] += 1
            return None
        return super().mark()


@dataclass
class _Sink:
    rows: dict[str, list[Row]]

    def is_full(self) -> bool:
        return False

    def appender(self, table: str) -> Append:
        return self.rows[table].append

    def drop(self, table: str, count: int = 1) -> None:
        raise AssertionError("nothing is dropped here")


def device_run(
    folder: Path,
    plan: Plan = Plan(),  # it is frozen
    **config: Any,
) -> Path:
    """Write a complete run into a new folder."""
    folder.mkdir(parents=True)
    shown = {
        "precision": "fp32",
        "device": "cuda:0",
        "batch_size": 256,
        "global_batch_size": 256 * plan.ranks,
        "world_size": plan.ranks,
        "warmup": WARM_UP,
        **config,
    }
    manifest = RunManifest(
        workload="resnet50",
        framework="torch",
        world_size=plan.ranks,
        created_ns=wall_ns(),
        owner=this_process(),
        config=shown,
        profkit_version="0",
    )
    manifest.write(folder)
    for rank in range(plan.ranks):
        _write_rank(folder, plan, rank)
    dataclasses.replace(manifest, state=RunState.COMPLETE, ended_ns=wall_ns()).write(folder)
    return folder


def _write_rank(folder: Path, plan: Plan, rank: int) -> None:
    rows = no_rows()
    machine = _Machine(plan, rank)
    timer = _Timer(machine, *(rows[table].append for table in ("spans", "samples", "events")))
    timer.collect()
    recorder = Recorder(
        _Sink(rows),
        device=timer,
        clock=machine.clock,
        is_measured=lambda step: not plan.control(step),
    )
    recorder.begin()
    for machine.step in range(plan.steps):
        timer.collect()
        with OpenStep(recorder, 256) as step:
            _train(recorder, machine, rows["collectives"].append)
            step.loss = 1.0
    device = f"cuda:{rank}"
    described = RankManifest(rank, "h", 1, device, read_anchor(), rank, plan.ranks, "torch")
    RankWriter(folder, described, rows=rows, complete=timer.collect).close()


def _train(recorder: Recorder, machine: _Machine, collectives: Append) -> None:
    plan = machine.plan
    late = plan.late_ns.get(machine.rank, 0)
    with recorder.phase(Phase.DATA):
        machine.host += DATA_NS
    with recorder.phase(Phase.H2D):
        machine.host += H2D_LAUNCH_NS
        machine.launch(0, H2D_NS)
    with recorder.phase(Phase.FORWARD):
        machine.launch(FORWARD_LAUNCH_NS, plan.forward_ns + jitter_ns(machine.step) + late)
    with recorder.phase(Phase.BACKWARD):
        machine.launch(BACKWARD_LAUNCH_NS, plan.backward_ns)
        waited = max(plan.late_ns.values(), default=0) - late
        if plan.ranks > 1:
            _exchange(recorder, machine, collectives, plan.tail_ns + waited)
    with recorder.phase(Phase.OPTIMIZER):
        machine.launch(OPTIMIZER_LAUNCH_NS, plan.optimizer_ns)
    machine.host = max(machine.host, machine.stream)  # the loss is read


def _exchange(recorder: Recorder, machine: _Machine, collectives: Append, exposed_ns: int) -> None:
    """Add the exposed end of the exchange to the device's work, as one bucket of NCCL."""
    ready, before = machine.host, machine.stream
    if machine.plan.tail == "device":
        with recorder.open(Phase.ALLREDUCE, EXPOSED):
            machine.launch(MS // 20, exposed_ns)
    else:
        machine.launch(MS // 20, exposed_ns)
        if machine.plan.tail == "host":
            recorder.keep_inner(Phase.ALLREDUCE.value, EXPOSED, ready, machine.host)
    if recorder.recording:
        row = CollectiveRow(
            "0", machine.step, "all_reduce", 25 << 20, "float32", machine.plan.ranks,
            ready, before, machine.stream, "nccl", machine.step, 0,
        )  # fmt: skip
        collectives(row)
