"""What a rank of a long run writes and computes is limited, whatever its steps are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis import thinning
from profkit.analysis.thinning import KEPT_ROWS_PER_PART, PartThinner
from profkit.frame.compiling import compiled_steps
from profkit.frame.parts import in_parts
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.trace.recent import MOST_PENDING
from tests.trace.test_thinning import HASTE, SECOND, Job, _span, compiled, record

WIDE, CALLS = 250, 1_600


class Wide(Job):
    """A job with few steps, and hundreds of rows in each."""

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        begin = self.now
        for place in range(WIDE):
            yield "spans", _span(step, "other", 1, begin + place, begin + place + 1)
        yield from super().rows(step)


class Compiling(Wide):
    """A job that compiles in a third of such steps."""

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        for table, row in super().rows(step):
            if table == "steps" and step % 3 == 0:
                yield "events", compiled(self.now - 5)
            yield table, row


@pytest.mark.parametrize("job", [Wide, Compiling])
def test_rows_that_are_kept_are_limited(tmp_path: Path, job: type[Job]) -> None:
    record(tmp_path / "run", thinned=True, job_type=job, steps=3_000, step_ns=SECOND)
    trace = Trace.open(tmp_path / "run")
    sums = trace.sums
    inside = trace.spans["step"].to_numpy()[in_parts(sums, trace.spans)]
    parts = len(np.unique(sums["part"].to_numpy()))
    assert parts > 100
    events = thinning.EVENT_ROWS if job is Compiling else 0
    assert len(inside) / parts < 1.5 * (KEPT_ROWS_PER_PART / HASTE + events)
    if job is Compiling:
        assert len(compiled_steps(trace.steps, trace.events)) >= 1_000


def _count_takes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    takes, take = [], PartThinner.take

    def counted(self: PartThinner, tables: Any) -> Any:
        takes.append(sum(table.num_rows for table in tables.values()))
        return take(self, tables)

    monkeypatch.setattr(PartThinner, "take", counted)
    return takes


def _write(files: RankFiles, waiting: dict[str, list[dict[str, Any]]]) -> None:
    for table, rows in waiting.items():
        files.write(table, {name: [row[name] for row in rows] for name in rows[0]})
    waiting.clear()


def test_rows_that_are_held_back_are_not_summed_again_at_each_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = _count_takes(monkeypatch)
    files = RankFiles(tmp_path / "r", 0, thinner=PartThinner, full_bytes=1)
    job, waiting = Job(0), dict[str, list[dict[str, Any]]]()
    for step in range(120):
        for place in range(CALLS):
            row = _span(step, "other", 1, job.now + place, job.now + place + 1)
            waiting.setdefault("spans", []).append(row)
        for table, row in job.rows(step):
            waiting.setdefault(table, []).append(row)
        _write(files, waiting)
        files.thin(lambda: job.now)
    assert len(takes) <= 120 * CALLS / MOST_PENDING + 2


def test_a_step_without_an_end_holds_back_a_limited_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = _count_takes(monkeypatch)
    files = RankFiles(tmp_path / "r", 0, thinner=PartThinner, full_bytes=1)
    job, waiting = Job(0), dict[str, list[dict[str, Any]]]()
    for step in range(100):
        for table, row in job.rows(step):
            waiting.setdefault(table, []).append(row)
        _write(files, waiting)
        files.thin(lambda: job.now)
    for _ in range(100):
        for _ in range(4_000):
            job.now += 1_000_000
            row = _span(100, "data", 0, job.now, job.now + 1)
            waiting.setdefault("spans", []).append({**row, "thread": "loader worker 0"})
        _write(files, waiting)
        files.thin(lambda: HASTE * job.now)
    assert max(takes) < thinning.MOST_HELD_ROWS + 3 * MOST_PENDING
