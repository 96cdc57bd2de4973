"""The tables that a query reads: those of the run, and those that its figures are sums of."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from profkit.frame.costs import RunCosts
from profkit.frame.estimate import Ints
from profkit.frame.run_frame import frame_of
from profkit.schema import ABOUT, SCHEMAS, open_schema
from profkit.text import safe_text
from profkit.trace import Trace

PART, INSIDE, OVERLAPPED = "part", "inside", "overlapped"
"""The kinds of rows in `costs`: parts add up to the step, the others do not."""

DERIVED: Mapping[str, str] = {
    "run": "One row: what is recorded about the run as a whole.",
    "config": "The settings of the run; a value is JSON.",
    "environment": "The machine and its software; a value is JSON.",
    "ranks": "One row per rank: host, process, device, and the first clock anchor.",
    "selection": "One row per step number: true if `report` uses it, or why it does not.",
    "phases": "Time of each phase in each used step as `report` shows it: mean over the ranks.",
    "costs": "What a used step spent its time on, over all ranks: the rows of `explain`.",
    "cost_steps": "Wall time and samples of the steps in `costs`, over all ranks.",
}
"""The tables that profkit computes, and what they hold."""

ABOUT_TABLES: Mapping[str, str] = {**ABOUT, **DERIVED}


class RunTables:
    """The tables of one run by name. Each is computed when it is asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._makers: dict[str, Callable[[], pa.Table]] = {
            "run": self.run,
            "config": lambda: pairs(trace.manifest.config),
            "environment": lambda: pairs(trace.manifest.environment),
            "ranks": self.ranks,
            "selection": self.selection,
            "phases": self.phases,
            "costs": self.cost_rows,
            "cost_steps": self.cost_steps,
            "steps": lambda: trace.steps,
        }

    @functools.cached_property
    def _costs(self) -> RunCosts:
        return frame_of(self.trace).costs

    def read(self, name: str) -> pa.Table:
        """Return a table of the run, with names as text."""
        if name in self._makers:
            return self._makers[name]()
        return self.trace.table(name)

    def columns(self, name: str) -> dict[str, str]:
        """Return the columns of a table with their types in words."""
        schema = open_schema(name) if name in SCHEMAS else self.read(name).schema
        found = {}
        for field in schema:
            kind = str(field.type)
            if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
                kind = "text"
            elif pa.types.is_fixed_size_list(field.type):
                kind = "3 x int32"
            found[field.name] = kind + ("?" if field.nullable and name in SCHEMAS else "")
        return found

    def run(self) -> pa.Table:
        trace, manifest = self.trace, self.trace.manifest
        row = {
            "name": trace.name,
            "workload": safe_text(manifest.workload),
            "framework": safe_text(manifest.framework),
            "state": manifest.state.value,
            "why": safe_text(manifest.why),
            "world_size": manifest.world_size,
            "ranks_seen": len(trace.ranks),
            "created_ns": manifest.created_ns,
            "ended_ns": manifest.ended_ns,
        }
        kinds = {"world_size": pa.int64(), "ranks_seen": pa.int64()}
        kinds |= {"created_ns": pa.int64(), "ended_ns": pa.int64()}
        columns = {}
        for name, value in row.items():
            columns[name] = [value], kinds.get(name, pa.string())
        return _table(columns)

    def ranks(self) -> pa.Table:
        rows = []
        for rank in self.trace.ranks:
            each = rank.manifest
            names = safe_text(each.host), safe_text(each.device)
            rows.append((each.rank, each.local_rank, *names, each.pid, *each.anchor[:2]))
        columns: list[tuple[Any, ...]] = [()] * len(_RANKS)
        if rows:
            columns = list(zip(*rows, strict=True))
        found = {}
        for name, values in zip(_RANKS, columns, strict=True):
            found[name] = values, pa.string() if name in {"host", "device"} else pa.int64()
        return _table(found)

    def selection(self) -> pa.Table:
        found = frame_of(self.trace).selection
        reasons: dict[int, str | None] = dict.fromkeys(found.steps.tolist())
        for reason, excluded in found.which.items():
            reasons |= dict.fromkeys(excluded.tolist(), reason)
        steps = sorted(reasons)
        why = list(map(reasons.__getitem__, steps))
        used = [reason is None for reason in why]
        return _table(
            {
                "step": (steps, pa.int64()),
                "used": (used, pa.bool_()),
                "why_not": (why, pa.string()),
            }
        )

    def phases(self) -> pa.Table:
        """Return the phases that `report` shows: on the device's clock if it was read."""
        used = frame_of(self.trace).selection.steps
        basis = frame_of(self.trace).basis
        if basis.costs is None:
            times = frame_of(self.trace).times(used)
            parts = dict(zip(times.names, times.parts, strict=True))
        else:
            costs = basis.costs
            used = costs.selection.steps
            parts = {}
            for name, ns in costs.parts.items():
                parts[name] = ns / costs.ranks
        return _table(
            {
                "step": (np.tile(used, len(parts)), pa.int64()),
                "phase": (np.repeat(list(parts), len(used)), pa.string()),
                "ns": (np.concatenate([np.empty(0), *parts.values()]), pa.float64()),
            }
        )

    def cost_steps(self) -> pa.Table:
        costs = self._costs
        ranks = np.full(costs.steps, costs.ranks)
        return _table(
            {
                "step": (costs.selection.steps, pa.int64()),
                "wall_ns": (costs.wall_ns, pa.int64()),
                "samples": (costs.samples, pa.int64()),
                "ranks": (ranks, pa.int64()),
            }
        )

    def cost_rows(self) -> pa.Table:
        """Return a row per step and part, then the finer parts, then what overlapped."""
        costs, schema = self._costs, _COSTS
        blocks = [cost_block(costs, PART, "", costs.parts)]
        for name, finer in costs.inside.items():
            blocks.append(cost_block(costs, INSIDE, name, finer))
        blocks.append(cost_block(costs, OVERLAPPED, "", costs.beside))
        return pa.concat_tables([schema.empty_table(), *filter(None, blocks)])


_RANKS = ("rank", "local_rank", "host", "device", "pid", "monotonic_ns", "realtime_ns")

_COSTS = pa.schema(
    [
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("part", pa.string()),
        ("part_of", pa.string()),
        ("ns", pa.int64()),
    ]
)


def cost_block(
    costs: RunCosts, kind: str, part_of: str, parts: Mapping[str, Ints]
) -> pa.Table | None:
    if not parts:
        return None
    count, steps = len(parts) * costs.steps, costs.selection.steps
    columns = {
        "step": (np.tile(steps, len(parts)), pa.int64()),
        "kind": ([kind] * count, pa.string()),
        "part": (np.repeat(list(parts), costs.steps).tolist(), pa.string()),
        "part_of": ([part_of or None] * count, pa.string()),
        "ns": (np.concatenate(list(parts.values())), pa.int64()),
    }
    return _table(columns).cast(_COSTS)


def pairs(facts: Mapping[str, Any]) -> pa.Table:
    """Return facts as two columns; profkit's own JSON escapes what steers a terminal."""
    values = map(functools.partial(json.dumps, default=str), facts.values())
    keys = list(map(safe_text, facts))
    return _table({"key": (keys, pa.string()), "value": (values, pa.string())})


def _table(columns: Mapping[str, tuple[Iterable[Any], pa.DataType]]) -> pa.Table:
    arrays = {}
    for name, (values, kind) in columns.items():
        # Given a numpy array, `pa.array` would import pandas where it is installed.
        plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
        arrays[name] = pa.array(plain, kind)
    return pa.table(arrays)


NAMES = (*SCHEMAS, *DERIVED)
"""The tables of a run, in the order in which they are listed."""
