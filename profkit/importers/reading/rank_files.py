"""Writes one rank's trace as its part of a run, and sums up what all ranks say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profkit.analysis.kernels.device_time import work_kinds
from profkit.clock import Anchor
from profkit.importers.base import RankDraft, RunDraft, Target, clean_name
from profkit.importers.kineto.aligning import Aligner
from profkit.importers.kineto.collectives import Collectives, collective_columns
from profkit.importers.kineto.device_phases import PlacedSpan, place_spans
from profkit.importers.kineto.events import Events, Role, find_anchor, sort_out, whole
from profkit.importers.kineto.idle_calls import IdleCalls, frames_of
from profkit.importers.kineto.phases import NestedSpan, find_phases, nest
from profkit.importers.kineto.steps import Steps, find_main_lane, find_steps, pace_by_device
from profkit.importers.kineto.tables import (
    PhaseLookup,
    describe_work,
    host_columns,
    kernel_columns,
    span_columns,
    wait_columns,
)
from profkit.importers.kineto.work import DeviceWork, find_work
from profkit.importers.reading.chrome import ChromeTrace
from profkit.importers.reading.sanity import TimeGate
from profkit.text import plural
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import DEVICE_IDLE

NO_SAMPLES = Flag(
    "the file does not say how many samples a step trains on, so there is no throughput; "
    "give --samples-per-step",
    FlagKind.NO_SAMPLES,
)
UNKNOWN_EVENTS = "events of categories that profkit does not know are in no figure"
NO_DEVICE_WORK = Flag(
    "the file has no device work that profkit knows: the host's operators stand in for kernels",
    FlagKind.NOTE,
)
DUPLICATES = "share a correlation id with another: launches of their kernels may be wrong"
MOST_UNKNOWN = 3
MAX_RANKS = 100_000
MAX_DEVICES = 64
MAX_DEVICES_NAMED = 8

_HOMES = frozenset({"home", "Users"})
_NAMELESS = frozenset({"", "tmp", "root"})
_RANK_IN_NAME = re.compile(r"(?:rank|worker|trainer)[-_.]?(\d{1,5})(?!\d)", re.IGNORECASE)
_RANK_IN_HEAD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*"?(\d{1,5})\b')
_PUBLIC_FIELDS = [
    "record_shapes",
    "with_stack",
    "with_flops",
    "with_modules",
    "profile_memory",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
]


@dataclass(frozen=True)
class RankFile:
    """One file and its rank: the one decided for it, else that of its content or its name."""

    path: Path
    trace: ChromeTrace
    decided: int | None = None

    @property
    def distributed(self) -> Mapping[str, Any]:
        """The file's own description of the distributed job."""
        found = self.trace.header.get("distributedInfo")
        if isinstance(found, dict):
            return found
        return {}

    @property
    def rank(self) -> int | None:
        if self.decided is not None:
            return self.decided
        if "rank" in self.distributed:
            return min(max(0, whole(self.distributed["rank"])), MAX_RANKS - 1)
        return rank_in_name(self.path)

    @property
    def world_size(self) -> int:
        return min(max(1, whole(self.distributed.get("world_size"), 1)), MAX_RANKS)


def stated_rank(path: Path, head: bytes) -> int | None:
    """Return the rank that a file's beginning states, else that of its name."""
    found = _RANK_IN_HEAD.search(head)
    if found:
        return int(found[1])
    return rank_in_name(path)


def rank_in_name(path: Path) -> int | None:
    """Return the rank in a file's name, as in `worker3` and `rank_3`, or null."""
    found = _RANK_IN_NAME.search(path.name)
    if found:
        return int(found[1])
    return None


def name_of_run(paths: Sequence[Path]) -> str:
    """Return the folder's name if the files are named by their rank; empty if it says nothing.

    A home folder has the name of its user, which is private.
    """
    if rank_in_name(paths[0]) is None:
        return ""
    folder = paths[0].absolute().parent
    if folder == Path.home() or folder.parent.name in _HOMES or folder.name in _NAMELESS:
        return ""
    return folder.name


class RunSummary:
    """Collects what the ranks' files say of the run as a whole."""

    def __init__(self) -> None:
        self.flags: list[str] = []
        self._framework = ""
        self._created_ns = 0
        self._devices: list[dict[str, Any]] = []
        self._environment: dict[str, Any] = {}
        self._config: dict[str, Any] = {}
        self.idle = IdleCalls()

    def add(self, file: RankFile, events: Events, anchor: Anchor) -> None:
        """Take what one rank's file says."""
        header = file.trace.header
        self._framework = events.framework
        if anchor.realtime_ns and len(events.start):
            self._created_ns = int(events.start.min()) - anchor.monotonic_ns + anchor.realtime_ns
        self._devices = self._devices or _describe_devices(header.get("deviceProperties"))
        for key in _PUBLIC_FIELDS:
            if key in header:
                self._environment[key] = clean_name(str(header[key]))
        backend = file.distributed.get("backend")
        if backend:
            self._config["backend"] = clean_name(str(backend))
        if self._devices:
            self._config["device"] = self._devices[0]["name"]

    def flag(self, text: str) -> None:
        """Add a flag, unless it is empty or another rank has it as well."""
        if text and text not in self.flags:
            self.flags.append(text)

    def flag_problems(self, file: RankFile, gate: TimeGate, *, one_of_several: bool) -> None:
        """Flag what was wrong with a rank's file."""
        problems = [*gate.flags, file.trace.problem]
        if file.trace.broken:
            problems.append(f"{plural(file.trace.broken, 'event')} could not be read")
        for text in filter(None, problems):
            flag = Flag(text)
            self.flag(flag.said_as(f"rank {file.rank or 0}: {text}") if one_of_several else flag)

    def manifest(self, world_size: int) -> RunManifest:
        if (idle := self.idle.described) is not None:
            self._config[DEVICE_IDLE] = idle
        return RunManifest(
            workload="",  # no profiler's file names its job, and a file's name is none
            framework=self._framework,
            world_size=world_size,
            created_ns=self._created_ns,
            config=self._config,
            environment={**self._environment, "devices": self._devices},
        )


def _describe_devices(given: Any) -> list[dict[str, Any]]:
    found = []
    for device in given[:MAX_DEVICES] if isinstance(given, list) else []:
        if not isinstance(device, dict):
            continue
        made: dict[str, Any] = {"name": clean_name(str(device.get("name", "")))}
        for theirs, ours in (("totalGlobalMem", "memory_bytes"), ("numSms", "multiprocessors")):
            if theirs in device:
                made[ours] = whole(device[theirs])
        major, minor = whole(device.get("computeMajor")), whole(device.get("computeMinor"))
        made["compute_capability"] = f"{major}.{minor}"
        found.append(made)
    return found


Held = list[tuple[RankDraft, Collectives]]
"""The collectives of ranks, which are written when all of them are known."""


def write_rank(
    draft: RunDraft,
    file: RankFile,
    world_size: int,
    target: Target,
    summary: RunSummary,
    held: Held | None = None,
    aligner: Aligner | None = None,
) -> None:
    """Write one file's tables, except for the collectives if they are to be `held`.

    The `aligner` knows the collectives of other ranks' files.
    """
    options, gate, rank = target.options, TimeGate(), file.rank or 0
    events = sort_out(file.trace, gate)
    main = find_main_lane(events)
    work = find_work(events, gate)
    steps = find_steps(events, main, work)
    spans, excluded_spans = nest(find_phases(events, main, steps, work))
    anchor = find_anchor(events)
    host = ""
    if options.keep_private:
        host = clean_name(str(file.trace.header.get("host_name", "")))
    devices = np.unique(work.device)[:MAX_DEVICES_NAMED].tolist()
    label = ", ".join(f"cuda:{each}" for each in devices) or "cpu"
    manifest = RankManifest(
        rank, host, 0, label, anchor, world_size=world_size, framework=events.framework
    )
    tables = draft.rank(manifest)
    paced = pace_by_device(steps, work)
    tables.write("steps", paced.table(options.samples_per_step or 0))
    _write_work(tables, events, main, work, steps, spans)
    collectives = collective_columns(events, work, steps, world_size if held is None else None)
    if aligner is not None:
        aligner.align(rank, collectives.columns, anchor, steps_marked=not steps.flag)
    if held is None:
        write_collectives(tables, collectives, summary)
    else:
        held.append((tables, collectives))
    summary.add(file, events, anchor)
    summary.idle.add(rank, events, work, steps)
    for flag in _flags_of_rank(collectives, paced, options.samples_per_step):
        summary.flag(flag)
    summary.flag_problems(file, gate, one_of_several=world_size > 1)
    _flag_gaps(events, work, summary)
    count_dropped(draft, events, excluded_spans, steps)


def _write_work(
    tables: RankDraft,
    events: Events,
    main: int,
    work: DeviceWork,
    steps: Steps,
    spans: Sequence[NestedSpan],
) -> None:
    """Write the phases and the kernels, or the operators if no device worked."""
    if len(work.place):
        described = describe_work(events, work)
        kind = work_kinds(described.categories)[described.category]
        lane = events.lane[work.launch]
        placed = place_spans(spans, main, work, lane, kind)
        kernels = kernel_columns(events, work, described, steps, PhaseLookup(spans, main))
        tables.write("samples", wait_columns(events, work))
    else:
        placed = list(map(PlacedSpan, spans))
        kernels = host_columns(events, steps)
    tables.write("spans", span_columns(events, placed, steps))
    tables.write("kernels", kernels)


def write_collectives(tables: RankDraft, found: Collectives, summary: RunSummary) -> None:
    """Write a rank's collectives, whose groups are known by now as far as they ever are."""
    summary.flag(found.settle_sizes())
    tables.write("collectives", found.columns)


def _flags_of_rank(
    collectives: Collectives, steps: Steps, samples_per_step: int | None
) -> Iterator[str]:
    yield collectives.flag
    yield steps.flag
    if not samples_per_step:
        yield NO_SAMPLES


def _flag_gaps(events: Events, work: DeviceWork, summary: RunSummary) -> None:
    """Flag what a reader would miss in the figures."""
    unknown = events.of(Role.UNKNOWN)
    if len(unknown):
        codes, counts = np.unique(events.column("category", unknown), return_counts=True)
        kinds = []
        for place in np.argsort(-counts)[:MOST_UNKNOWN].tolist():
            kinds.append(f"{counts[place]:,} {clean_name(events.names[codes[place]]) or 'without'}")
        more = ", ..." if len(codes) > MOST_UNKNOWN else ""
        summary.flag(f"{UNKNOWN_EVENTS} ({', '.join(kinds)}{more})")
    if not len(work.place):
        summary.flag(NO_DEVICE_WORK)
    elif duplicates := work.duplicates:
        summary.flag(f"{plural(duplicates, 'call')} {DUPLICATES}")


# Counts the events of a rank's trace that became no row.
def count_dropped(draft: RunDraft, events: Events, excluded_spans: int, steps: Steps) -> None:
    """Count the events that became no row, by what they are."""
    trace = events.trace
    is_half = np.isin(trace.events["kind"], (ord("B"), ord("E")))
    counts = {
        "host operators (the kernels name theirs)": len(events.of(Role.OP)),
        "host calls (the kernels have their launches)": len(events.of(Role.LAUNCH)),
        "waits of the host for the device": len(events.of(Role.SYNC)),
        "annotations on the device (the host has them too)": len(events.of(Role.DEVICE_ANNOTATION)),
        "Python frames, marks and counters": trace.ignored + len(frames_of(trace)),
        "events of unknown categories": len(events.of(Role.UNKNOWN)),
        "begin and end marks": int(is_half.sum()),
        "annotations around phases": excluded_spans,
        "steps that are marked twice or overlap": steps.overlapping,
        "calls of the loader, or marks, that no training followed": steps.idle,
        "broken events": trace.broken,
        "arguments of collectives, over the limit": trace.lost_extras,
    }
    for what, count in counts.items():
        if count:
            draft.dropped[what] += count
