"""The descriptions in a run: `run.json` for all of it, `rank.json` for each rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from profkit.clock import Anchor
from profkit.errors import UnreadableError
from profkit.text import safe_text
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.jsonfile import read_json, replace_json
from profkit.vocab import RANK_FILE, RUN_FILE, SCHEMA_VERSION, RunState

FORMAT = "profkit-run"
MOST_RANKS = 100_000

T = TypeVar("T")


@dataclass(frozen=True)
class RunManifest:
    """The contents of `run.json`. Every field that a source does not know is empty or null."""

    workload: str
    framework: str = ""
    state: RunState = RunState.RUNNING
    why: str = ""
    world_size: int = 1
    created_ns: int = 0
    ended_ns: int | None = None
    profkit_version: str = ""
    schema_version: tuple[int, int] = SCHEMA_VERSION
    owner: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    own_cost: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    """Reasons to distrust figures of a run that another tool recorded."""

    def with_ranks(self, ranks: Sequence[RankManifest]) -> RunManifest:
        """Return the manifest of a run that is open, with what only its ranks know so far."""
        if self.state is not RunState.RUNNING or not ranks:
            return self
        return dataclasses.replace(
            self,
            world_size=max(self.world_size, *(rank.world_size for rank in ranks)),
            framework=self.framework or ranks[0].framework,
            config={**ranks[0].config, **self.config},
        )

    def write(self, run: Path) -> None:
        content = {
            "format": FORMAT,
            **dataclasses.asdict(self),
            "state": self.state.value,
            "schema_version": list(self.schema_version),
            "notes": list(self.notes),
            "flags": [{"kind": each.kind.value, "text": str(each)} for each in self.flags],
        }
        replace_json(run / RUN_FILE, content)

    @classmethod
    def read(cls, run: Path) -> RunManifest:
        path = run / RUN_FILE
        content = read_json(path)
        if content.get("format") != FORMAT:
            raise UnreadableError(
                f"{safe_text(str(path))}: not a profkit run (its format is not '{FORMAT}')"
            )
        take = _Taker(path, content)
        version = take("schema_version", list, [])
        if len(version) != 2 or not {int}.issuperset(map(type, version)):
            raise take.wrong("schema_version", "two whole numbers")
        major, minor = version
        if major != SCHEMA_VERSION[0]:
            remedy = "install a newer profkit" if major > SCHEMA_VERSION[0] else "record it again"
            limit = f"this profkit reads {SCHEMA_VERSION[0]}.x; {remedy}"
            place = safe_text(str(path))
            raise UnreadableError(f"{place}: written in schema {major}.{minor}, and {limit}")
        state = take("state", str, "")
        if state not in set(RunState):
            raise take.wrong("state", f"one of {', '.join(RunState)}")
        return cls(
            workload=take("workload", str, ""),
            framework=take("framework", str, ""),
            state=RunState(state),
            why=take("why", str, ""),
            world_size=take.world_size(),
            created_ns=take("created_ns", int, 0),
            ended_ns=None if content.get("ended_ns") is None else take("ended_ns", int, 0),
            profkit_version=take("profkit_version", str, ""),
            schema_version=(major, minor),
            owner=take("owner", dict, {}),
            config=take("config", dict, {}),
            environment=take("environment", dict, {}),
            own_cost=take("own_cost", dict, {}),
            notes=tuple(map(str, take("notes", list, []))),
            flags=take.flags(),
        )


@dataclass(frozen=True)
class RankManifest:
    """The contents of `rank.json`: where one rank ran, and its first clock anchor."""

    rank: int
    host: str
    pid: int
    device: str
    anchor: Anchor
    local_rank: int = 0
    world_size: int = 1
    framework: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The identity of the job, as the rank saw it: model, optimizer, loader, batches."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The allowed variables of the rank's own process, and the libraries of its framework."""

    def content(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "anchor": self.anchor._asdict()}

    def write(self, folder: Path) -> None:
        replace_json(folder / RANK_FILE, self.content())

    @classmethod
    def read(cls, folder: Path) -> RankManifest:
        path = folder / RANK_FILE
        take = _Taker(path, read_json(path))
        anchor = _Taker(path, take("anchor", dict, {}))
        return cls(
            rank=take("rank", int, 0),
            host=take("host", str, ""),
            pid=take("pid", int, 0),
            device=take("device", str, ""),
            anchor=Anchor(*(anchor(name, int, 0) for name in Anchor._fields)),
            local_rank=take("local_rank", int, 0),
            world_size=take.world_size(),
            framework=take("framework", str, ""),
            config=take("config", dict, {}),
            environment=take("environment", dict, {}),
        )


def fits_a_column(value: int) -> bool:
    """Return true for a number that a table can hold, and of which a date can be made."""
    return -(2**63) <= value < 2**63


@dataclass(frozen=True)
class _Taker:
    """Takes fields out of a JSON object; a field of the wrong type is an error that names it."""

    path: Path
    content: Mapping[str, Any]

    def __call__(self, name: str, kind: type[T], default: T) -> T:
        value = self.content.get(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(name, kind.__name__)
        if isinstance(value, int) and not fits_a_column(value):
            raise self.wrong(name, "a number below 2^63")
        return value

    def flags(self) -> tuple[Flag, ...]:
        found = []
        for each in self("flags", list, []):
            known = isinstance(each, dict) and isinstance(each.get("text"), str)
            if not known or each.get("kind") not in set(FlagKind):
                raise self.wrong("flags", f"texts with a kind: {', '.join(FlagKind)}")
            found.append(Flag(each["text"], FlagKind(each["kind"])))
        return tuple(found)

    def world_size(self) -> int:
        found = self("world_size", int, 1)
        if not 1 <= found <= MOST_RANKS:
            raise self.wrong("world_size", f"a number of ranks up to {MOST_RANKS:,}")
        return found

    def wrong(self, name: str, expected: str) -> UnreadableError:
        problem = f"field '{name}' is not {expected}; the file is damaged"
        return UnreadableError(f"{safe_text(str(self.path))}: {problem}")
