"""Runs of small sharded jobs, made by playing a script for each rank on a clock of its own.

A collective ends on all of its ranks when the last of them has begun it and it was sent. A wait is
exposed. What a rank waits for therefore follows from the scripts, as it does in a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profkit.clock import Anchor
from profkit.testing.synthetic import BEGIN_NS
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState, rank_folder

US = 1_000
MS = 1_000_000


@dataclass(frozen=True)
class Work:
    """A rank computes for so long."""

    ms: float


@dataclass(frozen=True)
class Phase:
    """A phase that begins; an empty name ends the open one."""

    name: str = ""
    region: str = ""
    """The name of its span, if that is not the phase's."""


@dataclass(frozen=True)
class Begin:
    """A collective that a rank begins; it is waited for by its key."""

    key: str
    op: str
    ranks: tuple[int, ...]
    ms: float
    dimension: str
    module: str | None = None
    bytes: int = 1 << 20
    microbatch: int | None = None


@dataclass(frozen=True)
class Wait:
    """The rank waits for a collective that it has begun."""

    key: str


Action = Work | Phase | Begin | Wait
Script = Callable[[int], Sequence[Action]]


def both(begin: Begin) -> list[Action]:
    """Return a collective that is waited for at once."""
    return [begin, Wait(begin.key)]


@dataclass
class _Rank:
    now: int = BEGIN_NS
    todo: list[Action] = field(default_factory=list)
    phase: Phase = Phase()
    opened: int = 0
    spans: list[dict[str, Any]] = field(default_factory=list)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)
    numbers: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class _Meeting:
    """The ranks that have begun a collective, and its end once all of them have."""

    ready: dict[int, int] = field(default_factory=dict)
    end: int = 0


def sharded_run(
    folder: Path,
    script: Script,
    *,
    ranks: int = 2,
    steps: int = 40,
    seed: int = 0,
    samples: int = 8,
    cores: int = 8,
    config: Mapping[int, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a run of so many ranks, each of which plays its script in every step."""
    random = np.random.default_rng(seed)
    states = [_Rank() for _ in range(ranks)]
    links: dict[str, int] = defaultdict(int)
    for step in range(steps):
        starts = [state.now for state in states]
        for rank, state in enumerate(states):
            state.todo, state.begun = list(script(rank)), {}
        met: dict[str, _Meeting] = defaultdict(_Meeting)
        while any(state.todo for state in states):
            moved = [
                _play(rank, state, step, met, links, random) for rank, state in enumerate(states)
            ]
            assert any(moved), "the scripts wait for each other"
        for state, start in zip(states, starts, strict=True):
            row = {"step": step, "start_ns": start, "end_ns": state.now, "sample_count": samples}
            state.steps.append({**row, "instrumented": True, "epoch": 0})
    folder.mkdir(mode=0o700, parents=True)
    for rank, state in enumerate(states):
        _write(folder, rank, state, (config or {}).get(rank, {}), ranks)
    RunManifest(
        workload="sharded",
        framework="torch",
        state=RunState.COMPLETE,
        world_size=ranks,
        created_ns=1,
        ended_ns=2,
        profkit_version="0",
        config={"gpus": ranks},
        environment={"system": "synthetic", "cpu_count": cores},
    ).write(folder)
    return folder


def _play(
    rank: int,
    state: _Rank,
    step: int,
    met: dict[str, _Meeting],
    links: dict[str, int],
    random: Any,
) -> bool:
    """Play a rank's actions until it must wait for another rank; return true if it moved."""
    moved = False
    while state.todo:
        action = state.todo[0]
        if isinstance(action, Work):
            state.now += int(action.ms * MS * (1 + 0.02 * random.standard_normal()))
        elif isinstance(action, Phase):
            _open(state, step, action)
        elif isinstance(action, Begin):
            met[action.key].ready[rank] = state.now
            _begin(state, step, action)
        else:
            row = state.collectives[state.begun[action.key]]
            meeting, transfer_ns = met[action.key], row["transfer_ns"]
            if len(meeting.ready) < row["group_size"]:
                return moved
            if not meeting.end:  # a link sends one after the other
                link = f"{row['communicator']} {row['op']}"
                meeting.end = max(links[link], *meeting.ready.values()) + transfer_ns
                links[link] = meeting.end
            end = row["end_ns"] = meeting.end
            depth = 1 if state.phase.name else 0
            until = max(end, state.now) + 2 * US
            state.spans.append(_span(step, "allreduce", row["op"], depth, state.now, until))
            state.now = until
        state.todo.pop(0)
        moved = True
    return moved


def _open(state: _Rank, step: int, phase: Phase) -> None:
    before = state.phase
    if before.name:
        region = before.region or before.name
        state.spans.append(_span(step, before.name, region, 0, state.opened, state.now))
    state.phase, state.opened = phase, state.now


def _begin(state: _Rank, step: int, action: Begin) -> None:
    is_message = action.op in ("send", "recv")
    members = ">".join(map(str, action.ranks)) if is_message else str(action.ranks)
    communicator = f"{action.dimension}:{members}"
    state.begun[action.key] = len(state.collectives)
    row = {
        "communicator": communicator,
        "sequence": state.numbers[communicator],
        "op": action.op,
        "bytes": action.bytes,
        "dtype": "float32",
        "group_size": len(action.ranks),
        "ready_ns": state.now,
        "start_ns": state.now,
        "end_ns": state.now + int(action.ms * MS),
        "backend": "gloo",
        "step": step,
        "dimension": action.dimension,
        "module": action.module,
        "microbatch": action.microbatch,
        "transfer_ns": int(action.ms * MS),
    }
    state.numbers[communicator] += 1
    state.collectives.append(row)


def _span(step: int, phase: str, name: str, depth: int, start: int, end: int) -> dict[str, Any]:
    times = {"start_ns": start, "end_ns": end}
    return {
        "step": step, "phase": phase, "name": name, "depth": depth, "thread": "MainThread", **times
    }  # fmt: skip


def _write(folder: Path, rank: int, state: _Rank, config: Mapping[str, Any], ranks: int) -> None:
    files = RankFiles(folder / rank_folder(rank), rank)
    RankManifest(
        rank=rank,
        host="host0",
        pid=1000 + rank,
        device="cpu",
        anchor=Anchor(BEGIN_NS, 1_700_000_000_000_000_000, 100),
        local_rank=rank,
        world_size=ranks,
        config=config,
    ).write(files.folder)
    for row in state.collectives:
        del row["transfer_ns"]
    for table in ("steps", "spans", "collectives"):
        rows = getattr(state, table)
        files.write(table, {name: [row[name] for row in rows] for name in rows[0]})
    files.close()
