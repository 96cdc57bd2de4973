"""Old rows fit a schema that has gained a column; any other difference is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from profkit import schema
from profkit.clock import Anchor
from profkit.instrument.recorder import Recorder
from profkit.instrument.rows import COLUMNS
from profkit.testing import OpenStep
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace
from profkit.vocab import Phase

MANIFEST = RankManifest(0, "here", os.getpid(), "cpu", Anchor(1, 2, 3))
STEPS = 20


def _forget_schemas() -> None:
    schema.name_columns.cache_clear()
    schema.open_schema.cache_clear()


@pytest.fixture
def new_column(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One more nullable column of spans, as ARCHITECTURE.md says to add one."""
    meaning = {b"unit": b"bytes", b"meaning": b"free memory"}
    field = pa.field("free_bytes", pa.int64(), nullable=True, metadata=meaning)
    monkeypatch.setitem(schema.SCHEMAS, "spans", schema.SCHEMAS["spans"].append(field))
    _forget_schemas()
    yield field.name
    monkeypatch.undo()
    _forget_schemas()


def test_a_new_nullable_column_loses_no_rows(tmp_path: Path, new_column: str) -> None:
    RunManifest(workload="job").write(tmp_path)
    writer = RankWriter(tmp_path, MANIFEST, columns=COLUMNS)
    recorder = Recorder(writer)
    for _ in range(STEPS):
        with OpenStep(recorder, 1), recorder.phase(Phase.FORWARD):
            pass
        recorder.keep_inner("data", "read", 1, 2)
    writer.close()
    spans = Trace.open(tmp_path).spans
    assert spans["phase"].to_pylist() == ["forward", "data"] * STEPS
    assert spans[new_column].to_pylist() == [None] * 2 * STEPS


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (("start_ns", "step"), "rows of steps have the columns start_ns, step, but the schema has"),
        (("step", "start_ns"), "rows of steps lack the column end_ns, which is not nullable"),
        ((*COLUMNS["steps"], "more"), "rows of steps have the columns .*, more, but the schema"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_once(
    tmp_path: Path, columns: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        RankWriter(tmp_path, MANIFEST, columns={"steps": columns})
    assert not list(tmp_path.iterdir())
