"""The own work of ranks between the meetings of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.explain.rules._late_ranks import work_by_segment

MS = 1_000_000
STEPS = 20

Spent = Sequence[tuple[str, float]]
"""A step: the phases and their lengths in ms; `unknown` is no span."""


def _tables(by_rank: Mapping[int, Spent]) -> tuple[pa.Table, pa.Table]:
    """Return steps and spans of ranks that wait in `meet` until all of them are there."""
    now = dict.fromkeys(by_rank, 0.0)
    steps: list[tuple[int, int, float, float]] = []
    spans: list[tuple[int, int, str, int, float, float]] = []
    for step in range(STEPS):
        begin = dict(now)
        length = {len(spent) for spent in by_rank.values()}
        for place in range(max(length)):
            for rank, spent in by_rank.items():
                phase, took = spent[place]
                if phase not in {"unknown", "meet"}:
                    spans.append((rank, step, phase, 0, now[rank], now[rank] + took))
                if phase != "meet":
                    now[rank] += took
            if next(iter(by_rank.values()))[place][0] == "meet":
                until = max(now.values()) + 1
                for rank in by_rank:
                    spans.append((rank, step, "allreduce", 0, now[rank], until))
                    now[rank] = until
        steps += [(rank, step, begin[rank], now[rank]) for rank in by_rank]
    times = ("start_ns", "end_ns")
    return _table(steps, ("rank", "step"), times), _table(
        spans, ("rank", "step", "phase", "depth"), times
    )


def _table(rows: Sequence[tuple[Any, ...]], names: Sequence[str], times: Sequence[str]) -> pa.Table:
    columns = {name: [row[place] for row in rows] for place, name in enumerate((*names, *times))}
    for name in times:
        columns[name] = [round(ms * MS) for ms in columns[name]]
    return pa.table({**columns, "thread": ["MainThread"] * len(rows)})


def _step(*, before: float = 2.0, forward: float = 5.0, after: float = 1.0) -> Spent:
    return (
        ("data", before),
        ("meet", 0.0),
        ("forward", forward),
        ("backward", 6.0),
        ("meet", 0.0),
        ("unknown", after),
        ("optimizer", 3.0),
    )


@pytest.mark.parametrize(
    ("ranks", "late"),
    [
        ({0: _step(), 1: _step()}, []),
        ({0: _step(forward=9), 1: _step(before=7)}, [(0, 1, "data", 5), (1, 0, "forward", 4)]),
        ({0: _step(after=5), 1: _step(before=7)}, [(0, 0, "unknown", 4), (0, 1, "data", 5)]),
        ({0: _step(), 1: _step(), 2: _step(after=8)}, [(0, 2, "unknown", 7)]),
    ],
)
def test_lateness_is_found_before_its_meeting(
    ranks: Mapping[int, Spent], late: list[tuple[int, int, str, float]]
) -> None:
    """The time that ranks wait is no work of theirs."""
    found = []
    segments = work_by_segment(*_tables(ranks), np.arange(1, STEPS))
    assert len(segments) == 2
    for number, work in enumerate(segments):
        for rank, phase in work.later_by(MS):
            over = work.lateness(rank, phase)
            assert over is not None
            found.append((number, rank, phase, round(over.excess.value / MS)))
    assert found == late
    assert segments[1].mean_ns(0, "backward") == 6 * MS


def test_ranks_that_meet_once_or_unequally_have_no_segments() -> None:
    once = tuple(each for each in _step() if each[0] != "data")[1:]
    assert work_by_segment(*_tables({0: once, 1: once}), np.arange(STEPS)) == ()
    steps, spans = _tables({0: _step(), 1: _step()})
    kept = np.ones(spans.num_rows, dtype=bool)
    meets = np.flatnonzero(np.array(spans["phase"].to_pylist()) == "allreduce")
    kept[meets[:20:2]] = False
    assert work_by_segment(steps, spans.filter(pa.array(kept)), np.arange(STEPS)) == ()
    assert work_by_segment(*_tables({0: _step()}), np.arange(STEPS)) == ()
