"""Runs and comparisons in a notebook, which a real kernel executes."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.explain.explained import explain
from profkit.report import in_notebook
from profkit.report.in_notebook import show
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from tests.hostile import hostile_run

FRAME = re.compile(r'<iframe sandbox="" title="[^"<>]*" srcdoc="([^"]*)" style="[^"]*"></iframe>')


PREDICT = """
from profkit.explain.evidence import Evidence
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import open_job
from profkit.explain.predict.prediction import LINK, Question
ask(open_job(Evidence(base)), Question(LINK, 2.0))
"""
"""A cell that asks what faster links would give."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    late: dict[str, Any] = {"seed": 1, "phase_ns": {"data": 9_000_000}}
    return [
        synthetic_trace(folder / "base", ranks=2, steps=60),
        synthetic_trace(folder / "target", ranks=2, steps=60, **late),
    ]


def page_of(shown: str) -> str:
    """Return the page in the frame; nothing of it is outside."""
    found = FRAME.fullmatch(shown)
    assert found, shown[:300]
    return html.unescape(found[1])


def test_a_real_kernel_shows_them(runs: list[Path], tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    book = nbformat.v4.new_notebook()
    for code in (
        "from profkit import Trace\nfrom profkit.explain.explained import explain",
        f"base, target = Trace.open({str(runs[0])!r}), Trace.open({str(runs[1])!r})\nbase",
        "found = explain(base, target)\nfound",
        "found.ledger",
        PREDICT,
    ):
        book.cells.append(nbformat.v4.new_code_cell(code))
    nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = []
    for cell in book.cells[1:]:
        results = [each for each in cell.outputs if each.output_type == "execute_result"]
        shown.append(page_of(results[0].data["text/html"]))
    trace, explained, ledger, predicted = shown
    assert "<h1>What if: base</h1>" in predicted
    assert "<h1>base</h1>" in trace
    assert "samples/s" in trace
    assert "Causes" in explained
    assert "<h1>base → target</h1>" in ledger
    assert all("<svg" in each for each in shown[:3])


def test_the_ledger_has_the_figures_of_the_comparison(runs: list[Path]) -> None:
    found = explain(Trace.open(runs[0]), Trace.open(runs[1]))
    rows = re.findall(r"<tr><td>(.*?)</td>", page_of(show(found.ledger)))
    assert [row for row in rows if row[0] != "›"] == [
        *(row.name for row in found.ledger.rows),
        "total",
    ]
    assert "regression" in page_of(show(found.ledger))


def test_hostile_names_cannot_leave_the_frame(tmp_path: Path) -> None:
    shown = show(Trace.open(hostile_run(tmp_path / "hostile")))
    page = page_of(shown)
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    """An error in `_repr_html_` would be a traceback below the user's cell."""
    run = synthetic_trace(tmp_path / "void", steps=4)
    for path in run.glob("r*/*.arrows"):
        path.unlink()
    shown = Trace.open(run)._repr_html_()
    assert shown.startswith("<p>profkit: ")
    assert "holds no steps" in shown


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="does not show int"):
        show(1)


def test_a_run_and_a_comparison_by_their_names(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages `report` and `explain` are functions, whatever was imported first."""
    monkeypatch.setattr(in_notebook, "RUNS", runs[0].parent)
    shown = profkit.report("base")
    assert repr(shown).startswith("A step takes ")
    assert "Where a step goes" in page_of(shown._repr_html_())
    both = profkit.explain("base", runs[1])
    assert "in data" in repr(both).splitlines()[0]
    assert "Where the time goes" in page_of(both._repr_html_())
