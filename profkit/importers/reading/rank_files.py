"""One rank's events as its part of a run, whichever tool they came from; and what the ranks say of the whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profkit.clock import Anchor
from profkit.importers.base import RankDraft, RunDraft, Target, clean_name
from profkit.importers.kineto.events import Events, Role, sort_out, whole
from profkit.importers.kineto.phases import (
    TWICE,
    Steps,
    find_main_lane,
    find_phases,
    find_steps,
    nest,
)
from profkit.importers.kineto.tables import (
    SIZES_UNKNOWN,
    Phases,
    Work,
    collective_columns,
    find_work,
    host_work,
    kernel_columns,
    span_columns,
)
from profkit.importers.reading.chrome import ChromeTrace
from profkit.importers.reading.sanity import Gate
from profkit.text import plural
from profkit.trace.manifest import RankManifest, RunManifest

NO_SAMPLES = "the file does not say how many samples a step trains on (--samples-per-step tells it); throughput cannot be judged"
MOST_RANKS = 100_000

_RANK_IN_NAME = re.compile(r"(?:rank|worker|trainer)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
_RANK_IN_HEAD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*"?(\d{1,5})\b')
_ABSOLUTE_NS = 10**18
_PUBLIC = (
    "record_shapes",
    "with_stack",
    "with_flops",
    "with_modules",
    "profile_memory",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
)
_DEVICE_FIELDS = {"name": "name", "totalGlobalMem": "memory_bytes", "numSms": "multiprocessors"}


@dataclass(frozen=True)
class RankFile:
    """One file, and its rank: what was decided for it, else what its content says, else what its name does."""

    path: Path
    trace: ChromeTrace
    decided: int | None = None

    @property
    def told(self) -> Mapping[str, Any]:
        found = self.trace.header.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    @property
    def rank(self) -> int | None:
        if self.decided is not None:
            return self.decided
        if "rank" in self.told:
            return min(max(0, whole(self.told["rank"])), MOST_RANKS - 1)
        return rank_in_name(self.path)

    @property
    def world_size(self) -> int:
        return min(max(1, whole(self.told.get("world_size"), 1)), MOST_RANKS)


def told_rank(path: Path, head: bytes) -> int | None:
    """The rank that a file's beginning tells, else its name."""
    found = _RANK_IN_HEAD.search(head)
    return int(found[1]) if found else rank_in_name(path)


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name tells, as `worker3` and `rank_3` do."""
    found = _RANK_IN_NAME.search(path.name)
    return int(found[1]) if found else None


class Summary:
    """What the ranks' files say of the run as a whole."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self._framework = ""
        self._created_ns = 0
        self._devices: list[dict[str, Any]] = []
        self._environment: dict[str, Any] = {}
        self._workload = ""
        self._config: dict[str, Any] = {}

    def add(self, file: RankFile, events: Events, anchor: Anchor) -> None:
        self._framework = events.framework
        self._workload = self._workload or clean_name(file.path.name.partition(".")[0])
        if anchor.realtime_ns and len(events.start):
            self._created_ns = int(events.start.min()) - anchor.monotonic_ns + anchor.realtime_ns
        self._devices = self._devices or _devices(file.trace)
        self._environment |= {
            key: clean_name(str(file.trace.header[key]))
            for key in _PUBLIC
            if key in file.trace.header
        }
        backend = file.told.get("backend")
        if backend:
            self._config["backend"] = clean_name(str(backend))
        if self._devices:
            self._config["device"] = self._devices[0]["name"]

    def flag(self, text: str) -> None:
        if text and text not in self.flags:
            self.flags.append(text)

    def manifest(self, world_size: int) -> RunManifest:
        return RunManifest(
            workload=self._workload,
            framework=self._framework,
            world_size=world_size,
            created_ns=self._created_ns,
            config=self._config,
            environment={**self._environment, "devices": self._devices},
        )


def _devices(trace: ChromeTrace) -> list[dict[str, Any]]:
    given = trace.header.get("deviceProperties")
    found = []
    for device in given[:64] if isinstance(given, list) else []:
        if isinstance(device, dict):
            made: dict[str, Any] = {
                ours: device[theirs] for theirs, ours in _DEVICE_FIELDS.items() if theirs in device
            }
            capability = f"{whole(device.get('computeMajor'))}.{whole(device.get('computeMinor'))}"
            numbers = {key: whole(value) for key, value in made.items() if key != "name"}
            found.append(
                {
                    "name": clean_name(str(made.get("name", ""))),
                    **numbers,
                    "compute_capability": capability,
                }
            )
    return found


def write_rank(
    draft: RunDraft, file: RankFile, world_size: int, target: Target, summary: Summary
) -> None:
    """One file's tables."""
    gate = Gate()
    rank = file.rank or 0
    events = sort_out(file.trace, gate)
    main = find_main_lane(events)
    steps = find_steps(events, main)
    work = find_work(events, gate)
    regions, unplaced = nest(find_phases(events, main, steps))
    anchor = _anchor(file.trace, events)
    devices = np.unique(work.device)
    label = (
        f"cuda:{devices[0]}"
        if len(devices) == 1
        else ", ".join(f"cuda:{each}" for each in devices[:8].tolist()) or "cpu"
    )
    host = (
        clean_name(str(file.trace.header.get("host_name", "")))
        if target.options.keep_private
        else ""
    )
    tables = draft.rank(
        RankManifest(
            rank, host, 0, label, anchor, world_size=world_size, framework=events.framework
        )
    )
    tables.write("steps", _step_columns(steps, target.options.samples_per_step or 0))
    tables.write("spans", span_columns(events, regions, steps))
    tables.write(
        "kernels",
        kernel_columns(events, work, steps, Phases(regions, main))
        if len(work.place)
        else host_work(events, steps),
    )
    _write_collectives(tables, events, work, steps, world_size, summary)
    summary.add(file, events, anchor)
    for text in (steps.flag, "" if target.options.samples_per_step else NO_SAMPLES):
        summary.flag(text)
    _count(draft, file.trace, events, unplaced, steps)
    rank_word = f"rank {rank}: " if world_size > 1 else ""
    for text in [*gate.flags, file.trace.problem]:
        summary.flag(f"{rank_word}{text}" if text else "")
    if file.trace.broken:
        summary.flag(f"{rank_word}{plural(file.trace.broken, 'event')} could not be read")


def _write_collectives(
    tables: RankDraft, events: Events, work: Work, steps: Steps, world_size: int, summary: Summary
) -> None:
    made, sizeless = collective_columns(events, work, steps, world_size)
    tables.write("collectives", made)
    if sizeless:
        summary.flag(f"{SIZES_UNKNOWN}: {sizeless:,}")


def _step_columns(steps: Steps, samples: int) -> dict[str, Any]:
    return {
        "step": steps.number,
        "start_ns": steps.start,
        "end_ns": steps.end,
        "sample_count": np.full(len(steps.number), samples, dtype=np.int64),
        "instrumented": [True] * len(steps.number),
    }


def _anchor(trace: ChromeTrace, events: Events) -> Anchor:
    """How the file's clock stands to the time of day: it tells a base, or its times are of that clock themselves."""
    base = whole(trace.header.get("baseTimeNanoseconds"))
    if 0 < base < 2**62:
        return Anchor(0, base, 0)
    if len(events.start) and int(events.start.min()) > _ABSOLUTE_NS:
        return Anchor(int(events.start.min()), int(events.start.min()), 0)
    return Anchor(0, 0, 0)


def _count(
    draft: RunDraft, trace: ChromeTrace, events: Events, unplaced: int, steps: Steps
) -> None:
    counts = {
        "host operators (the kernels name theirs)": len(events.of(Role.OP)),
        "host calls (the kernels have their launches)": len(events.of(Role.LAUNCH)),
        "waits of the host for the device": len(events.of(Role.SYNC)),
        "annotations on the device (the host has them too)": len(events.of(Role.DEVICE_ANNOTATION)),
        "Python frames, marks and counters": trace.ignored + len(events.of(Role.STACK)),
        "events of unknown categories": len(events.of(Role.UNKNOWN)),
        "begin and end marks": int(np.isin(trace.events["kind"], (ord("B"), ord("E"))).sum()),
        "annotations around phases": unplaced,
        TWICE: steps.overlapping,
        "broken events": trace.broken,
        "arguments of collectives, over the limit": trace.lost_extras,
    }
    draft.dropped.update({what: count for what, count in counts.items() if count})
