"""The section about the framework's compiler: when it worked, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from profkit.analysis.overview import Overview
from profkit.frame.compiling import Compiling, join_reason
from profkit.show.document import Column, Grid, Quantity, Section, Table, data_columns, missing
from profkit.show.figures import COUNT, MS
from profkit.text import duration, plural

MOST_ROWS = 8

_UNKNOWN = "a function whose name is not known"

_RECOMPILED = (
    *data_columns("function", "guard", "times"),
    *data_columns(unit=MS, ms="ns"),
)
_OVER_LIMIT = (
    Column("function", "", lambda row: row[0]),
    Column("variants", "", lambda row: row[1], COUNT),
)
_FAILED = (
    Column("function", "", lambda row: row[0][0]),
    Column("reason", "", lambda row: row[0][1]),
)


def compiling_section(view: Overview) -> Iterator[Section]:
    found = view.compiling
    if found is None:
        yield from missing("compiling")
        return
    rows = []
    for each in found.recompiled[:MOST_ROWS]:
        what = f"{each.function or _UNKNOWN}: {each.guard}"
        rows.append(("compiled again", str(each.times), duration(each.ns), what))
    for function, limit in found.over_limit[:MOST_ROWS]:
        what = f"{function}: its {limit} variants are all that the compiler allows; other inputs"
        rows.append(("not compiled", "", "", f"{what} run uncompiled from then on"))
    for (function, reason), times in found.failed[:MOST_ROWS]:
        rows.append(("not compiled", str(times), "", join_reason(function, reason)))
    for place, times in found.breaks[:MOST_ROWS]:
        rows.append(("graph break", str(times), "", place))
    listed = found.recompiled, found.over_limit, found.failed, found.breaks
    left = sum(max(0, len(each) - MOST_ROWS) for each in listed)
    notes = [compiled_line(view)]
    if left:
        notes.append(f"{plural(left, 'more row')} in --json")
    grid = None
    if rows:
        grid = Grid(("", "times", "time", "where and why"), tuple(rows), frozenset((1, 2)))
    yield Section(
        "Compilation", tuple(notes), table=grid, key="compiling", facts=_facts(view, found)
    )


def _facts(view: Overview, found: Compiling) -> dict[str, Any]:
    by_rank = {}
    for rank, row in zip(found.ranks, found.rank_ns, strict=True):
        by_rank[str(rank)] = float(row.sum())
    times = Column("times", "", lambda row: row[1], COUNT)
    return {
        "steps": len(found.steps),
        "of_steps": found.of_steps,
        "step_numbers": found.steps,
        "left_out_of_throughput": is_left_out(view),
        "compilations": found.compilations,
        "ms": Quantity(found.ns, MS),
        "ms_by_rank": Quantity(by_rank, MS),
        "outside_steps_ms": Quantity(found.outside_ns, MS),
        "recompiled": Table(_RECOMPILED, found.recompiled),
        "over_limit": Table(_OVER_LIMIT, found.over_limit),
        "not_compiled": Table((*_FAILED, times), found.failed),
        "graph_breaks": Table((Column("place", "", lambda row: row[0]), times), found.breaks),
    }


def compiled_line(view: Overview) -> str:
    """Return how many steps compiled, how long that took, and if the figures include them."""
    found = view.compiling
    if found is None:
        return ""
    line = (
        f"{len(found.steps):,} of {plural(found.of_steps, 'step')} compiled, "
        f"{duration(found.ns)} in all"
    )
    if found.outside_ns:
        line += f"; {duration(found.outside_ns)} more outside all steps"
    if not len(found.steps):
        return line
    if is_left_out(view):
        return f"{line}; left out of the throughput"
    return f"{line}; these are too many to leave out, so all figures include them"


def is_left_out(view: Overview) -> bool:
    """Return true if no step that compiled is part of the figures."""
    found = view.compiling
    return found is None or not np.isin(found.steps, view.selection.steps).any()
