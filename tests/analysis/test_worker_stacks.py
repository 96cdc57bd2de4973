"""Samples of loader workers, and the lines that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.stack_samples import WAITING
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.vocab import EYE, LOADER_WORKER, rank_folder
from tests.analysis.test_stacks import MS, write_run
from tests.documents import report_json, report_text

STEPS, STEP_MS = 40, 100
QUEUE = "/usr/lib/python3/multiprocessing/queues.py"
FRAMES: Sequence[Sequence[Any]] = (
    (0, None, "/lib/site-packages/torch/worker.py", "_worker_loop", 300, "package"),
    (1, 0, "/home/x/data.py", "Items.__getitem__", 12, "job"),
    (2, 1, "/lib/site-packages/PIL/Image.py", "decode", 5, "package"),
    (3, 0, QUEUE, "Queue.get", 100, "python"),
)


def _write_workers(
    run: Path, workers: int, *, rank: int = 0, steps: int = STEPS, every_ns: int = 10 * MS
) -> None:
    """Workers that decode for 60 ms of each 100 ms, and then wait."""
    files = RankFiles(run / rank_folder(rank) / EYE, rank)
    names = ("id", "parent", "file", "function", "line", "origin")
    files.write("frames", dict(zip(names, zip(*FRAMES, strict=True), strict=True)))
    rows = []
    for at in range(5, steps * STEP_MS, 10):
        stack, state, call = (2, "R", None) if at % STEP_MS < 60 else (3, "S", "futex")
        for worker in range(workers):
            name = f"{LOADER_WORKER}{worker}"
            rows.append((at * MS, 0, every_ns, name, stack, state, call, None))
    columns = ["time_ns", "late_ns", "every_ns", "thread", "stack", "state", "call", "waited_share"]
    files.write("stacks", dict(zip(columns, zip(*rows, strict=True), strict=True)))
    files.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", steps=STEPS)
    return tmp_path / "run"


def test_the_line_of_the_workers_is_named_with_its_time(run: Path) -> None:
    _write_workers(run, 2)
    view = build_overview(Trace.open(run))
    found = view.worker_lines
    assert found is not None
    assert found.workers == 2
    first, second = found.lines
    assert (first.place.file, first.place.line) == ("/home/x/data.py", 12)
    assert first.place.below == "decode"
    assert first.step_ns.value == pytest.approx(2 * 60 * MS)
    assert second.place.file == WAITING
    text = report_text(view)
    assert "In the loader's workers" in text
    assert "data.py:12 Items.__getitem__ (decode)" in text
    figures = report_json(view)["code_of_workers"]
    assert figures["lines"][0]["line"] == 12
    assert figures["lines"][1]["why_no_line"] == WAITING


def test_a_run_without_them_has_no_section(run: Path) -> None:
    view = build_overview(Trace.open(run))
    assert view.worker_lines is None
    assert report_json(view)["code_of_workers"] is None


def test_workers_of_several_ranks_are_those_of_a_rank_on_average(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=STEPS, clip_ms=(30, 30))
    for rank in range(2):
        _write_workers(tmp_path / "run", 2, rank=rank)
    view = build_overview(Trace.open(tmp_path / "run")).worker_lines
    assert view is not None
    assert view.workers == 4
    assert view.lines[0].step_ns.value == pytest.approx(2 * 60 * MS)


def test_few_samples_name_no_line(run: Path) -> None:
    _write_workers(run, 1, steps=2)
    text = report_text(build_overview(Trace.open(run)))
    assert "20 samples only, so no line is named" in text
    assert "Items.__getitem__" not in text


@pytest.mark.parametrize("every_ns", [0, 2**62])
def test_damaged_times_between_samples_give_no_impossible_figures(run: Path, every_ns: int) -> None:
    _write_workers(run, 1, every_ns=every_ns)
    found = build_overview(Trace.open(run)).worker_lines
    assert found is None or found.step_ns >= 0
