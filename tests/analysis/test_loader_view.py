"""Loaders are split by worker, and the model of more workers holds if its assumption does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from profkit.analysis.views.loader import LOOP, THREAD, WORKER, LoaderView, build_loader_view
from profkit.testing.synthetic import BEGIN_NS, synthetic_trace
from profkit.trace import Trace
from profkit.tui.themes import PALETTES
from profkit.tui.widgets.loader_draw import summary_lines
from tests.analysis.tables import rows_table

MS = 1_000_000
STEPS = 40
REST_MS = 10
"""What a step takes without its wait for data."""


def _trace(
    folder: Path,
    spans: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    samples: list[dict[str, Any]] | None = None,
    **config: Any,
) -> Trace:
    trace = Trace.open(
        synthetic_trace(folder, steps=1, config={"warmup": 0, "device": "cpu", **config})
    )
    tables: dict[str, pa.Table] = {
        "steps": rows_table("steps", steps),
        "spans": rows_table("spans", spans),
        "samples": rows_table("samples", samples or []),
    }
    vars(trace).update(tables)
    return trace


def _step(number: int, start: int, end: int) -> dict[str, Any]:
    return {
        "rank": 0,
        "step": number,
        "start_ns": start,
        "end_ns": end,
        "sample_count": 4,
        "epoch": 0,
        "instrumented": True,
    }


def _span(step: int, name: str, thread: str, depth: int, start: int, end: int) -> dict[str, Any]:
    return {
        "rank": 0,
        "step": step,
        "phase": "data",
        "name": name,
        "depth": depth,
        "thread": thread,
        "start_ns": start,
        "end_ns": end,
    }


def _batch(
    step: int, thread: str, start: int, making_ms: int, taken: int | None
) -> list[dict[str, Any]]:
    """Return a batch: 10 % reading, 50 % decoding, 10 % collating, the rest without a core."""
    part = making_ms * MS // 10
    ends = [start + part, start + 6 * part]
    rows = [_span(step, "read", thread, 1, start, ends[0]), _span(step, "decode", thread, 1, *ends)]
    rows.append(_span(step, "collate", thread, 1, start + 9 * part, start + 10 * part))
    return rows + (
        [_span(step, "queue", thread, 1, start + 10 * part, taken)] if taken is not None else []
    )


def _in_workers(folder: Path, workers: int, making_ms: int, elsewhere_ms: int = 0) -> LoaderView:
    """A job whose loader has so many workers that never rest, each `making_ms` a batch.

    It also waits for something else than a batch.
    """
    every = max(making_ms * MS // workers, REST_MS * MS) + elsewhere_ms * MS
    spans, steps = [], []
    for number in range(STEPS):
        start = BEGIN_NS + number * every
        got = start + every - REST_MS * MS
        spans.append(_span(number, "data", "MainThread", 0, start, got))
        spans += _batch(
            number, f"loader worker {number % workers}", got - making_ms * MS - 5, making_ms, got
        )
        steps.append(_step(number, start, start + every))
    return build_loader_view(_trace(folder, spans, steps, workers=workers))


def _in_the_loop(folder: Path, making_ms: int) -> LoaderView:
    spans, steps = [], []
    every = (making_ms + REST_MS) * MS
    for number in range(STEPS):
        start = BEGIN_NS + number * every
        spans += _batch(number, "MainThread", start, making_ms, None)
        spans.append(_span(number, "data", "MainThread", 0, start, start + making_ms * MS))
        steps.append(_step(number, start, start + every))
    return build_loader_view(_trace(folder, spans, steps, workers=0))


def test_each_worker_has_its_own_times(tmp_path: Path) -> None:
    view = _in_workers(tmp_path / "run", 2, 30)
    assert [(maker.name, maker.kind, maker.batches) for maker in view.makers] == [
        ("loader worker 0", WORKER, 20),
        ("loader worker 1", WORKER, 20),
    ]
    for maker in view.makers:
        assert (
            maker.making_ns,
            maker.read_ns,
            maker.decode_ns,
            maker.collate_ns,
            maker.queue_ns,
            maker.no_core_ns,
        ) == (
            30 * MS,
            3 * MS,
            15 * MS,
            3 * MS,
            5,
            9 * MS,
        )
        assert maker.busy_share == pytest.approx(1.0)
    assert (view.step_ns, view.wait_ns, view.batches_per_step) == (15 * MS, 5 * MS, 1.0)


@pytest.mark.parametrize(("workers", "making_ms"), [(1, 35), (2, 35), (4, 35), (4, 8)])
def test_the_model_says_of_the_workers_that_there_are_what_was_measured(
    tmp_path: Path, workers: int, making_ms: int
) -> None:
    view = _in_workers(tmp_path / "run", workers, making_ms)
    assert view.model is not None
    assert view.model.workers == workers
    assert view.model.now.step_ns == view.step_ns
    assert view.model.now.wait_ns == view.wait_ns


def test_it_foretells_what_other_numbers_of_workers_then_take(tmp_path: Path) -> None:
    told = {
        row.workers: row.step_ns
        for row in (_in_workers(tmp_path / "one", 1, 35).model or pytest.fail("no model")).tried
    }
    for workers in (2, 4):
        assert told[workers] == pytest.approx(
            _in_workers(tmp_path / str(workers), workers, 35).step_ns
        )
    assert told[0] == pytest.approx(_in_the_loop(tmp_path / "loop", 35).step_ns)


def test_enough_workers_hide_the_loader(tmp_path: Path) -> None:
    model = _in_workers(tmp_path / "run", 1, 35).model
    assert model is not None
    assert (model.enough, model.making_ns, model.rest_ns) == (4, 35 * MS, REST_MS * MS)
    assert model.no_core_share == pytest.approx(0.3)
    by_count = {row.workers: row for row in model.tried}
    assert (by_count[4].wait_ns, by_count[2].wait_ns > 0) == (0, True)
    assert by_count[4].cores == pytest.approx(0.6 * 35 / REST_MS)


@pytest.mark.parametrize(("elsewhere_ms", "is_explained"), [(0, True), (1, True), (30, False)])
def test_workers_are_not_advised_for_a_wait_that_making_batches_does_not_explain(
    tmp_path: Path, elsewhere_ms: int, is_explained: bool
) -> None:
    view = _in_workers(tmp_path / "run", 4, 8, elsewhere_ms)
    assert view.unexplained_ns == (0 if is_explained else elsewhere_ms * MS)
    said = "".join(text for line in summary_lines(view, PALETTES["dark"]) for text, _ in line)
    assert ("inconclusive what more workers would change" in said) == (not is_explained)
    assert ("the loader is hidden" in said) == is_explained


def test_a_loop_that_makes_its_batches_itself_waits_for_each(tmp_path: Path) -> None:
    view = _in_the_loop(tmp_path / "run", 30)
    (maker,) = view.makers
    assert (maker.kind, maker.queue_ns, maker.making_ns) == (LOOP, None, 30 * MS)
    assert view.model is not None
    assert (view.model.workers, view.model.now.step_ns, view.model.enough) == (0, view.step_ns, 3)
    assert (view.shares_cores, view.configured_workers) == (True, 0)


def test_a_thread_beside_the_loop_is_one_worker(tmp_path: Path) -> None:
    spans = [
        row
        for number in range(STEPS)
        for row in _batch(
            number,
            "loader thread",
            BEGIN_NS + number * REST_MS * MS,
            5,
            BEGIN_NS + number * REST_MS * MS + 6 * MS,
        )
    ]
    steps = [
        _step(number, BEGIN_NS + number * REST_MS * MS, BEGIN_NS + (number + 1) * REST_MS * MS)
        for number in range(STEPS)
    ]
    view = build_loader_view(_trace(tmp_path / "run", spans, steps, device="cuda"))
    assert [maker.kind for maker in view.makers] == [THREAD]
    assert view.model is not None
    assert (view.model.workers, view.shares_cores) == (1, False)


def test_the_queues_depth_is_told_over_the_run(tmp_path: Path) -> None:
    samples = [
        {
            "rank": 0,
            "source": "loader",
            "metric": "queue_depth_batches",
            "time_ns": BEGIN_NS + at,
            "value": depth,
        }
        for at, depth in enumerate((0, 2, 4, 0))
    ]
    (depth,) = build_loader_view(
        _trace(tmp_path / "run", [], [_step(0, BEGIN_NS, BEGIN_NS + 9)], samples)
    ).depths
    assert (depth.rank, depth.empty_share, depth.series.average, depth.series.most) == (
        0,
        0.5,
        1.5,
        4.0,
    )


def test_rows_of_a_batch_whose_beginning_was_not_seen_belong_to_no_other(tmp_path: Path) -> None:
    spans = [
        _span(0, "queue", "loader worker 1", 1, 0, 9 * MS),
        *_batch(0, "loader worker 0", 0, 10, 11 * MS),
        _span(0, "queue", "loader worker 2", 1, 0, 9 * MS),
    ]
    view = build_loader_view(_trace(tmp_path / "run", spans, [_step(0, 0, 20 * MS)]))
    assert [(maker.name, maker.queue_ns) for maker in view.makers] == [("loader worker 0", 1 * MS)]


def test_where_reads_are_not_recorded_there_is_no_model(tmp_path: Path) -> None:
    view = build_loader_view(Trace.open(synthetic_trace(tmp_path / "run")))
    assert (view.makers, view.model, view.batches_per_step) == ((), None, None)
    assert view.wait_ns == pytest.approx(2 * MS, rel=0.2)
