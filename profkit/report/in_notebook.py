"""Runs and comparisons as HTML for a notebook's output.

The page is the one of `--format html`. It is in a frame without rights: its style sheet cannot
change the notebook, and nothing in it can run, whatever the names in a run contain.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable
from pathlib import Path

from profkit.analysis.kept_ceilings import load_ceilings
from profkit.analysis.overview import build_overview
from profkit.errors import ProfkitError
from profkit.explain import explained
from profkit.explain.explained import Explained
from profkit.explain.ledger import TOTAL, Ledger
from profkit.explain.predict.prediction import Prediction
from profkit.report import ledger_document, ledger_words
from profkit.report.advice import find_answers
from profkit.report.overview_document import illustrate, overview
from profkit.report.whatif_document import whatif
from profkit.show import brief as show_brief
from profkit.show import html as show_html
from profkit.show.document import Document, Section
from profkit.show.svg import text
from profkit.trace import Trace
from profkit.trace.folders import find_run
from profkit.version import __version__

RUNS = Path("traces")
"""The folder in which a run without a path is looked for."""

FRAME_HEIGHT = 640
"""Height of the frame in pixels; without a script, a frame cannot fit its content."""


class Shown:
    """A document that a notebook shows as a page, and a prompt as the brief text."""

    def __init__(self, title: str, draw: Callable[[], Document]) -> None:
        self._title, self._draw = title, draw

    def _repr_html_(self) -> str:
        return framed(self._title, self._draw)

    def __repr__(self) -> str:
        return show_brief.document(self._draw())


def open_named(run: str | Path) -> Trace:
    return Trace.open(find_run(Path(run), RUNS))


def report(run: str | Path) -> Shown:
    """Return the report of a run, which is named as on the command line."""
    trace = open_named(run)
    return Shown(trace.name, lambda: run_document(trace))


def explain(base: str | Path, target: str | Path) -> Shown:
    """Return the comparison of two runs, which are named as on the command line."""
    before, after = open_named(base), open_named(target)
    view = explained.explain(before, after)
    return Shown(f"{before.name} → {after.name}", lambda: comparison(view))


@functools.singledispatch
def show(view: object) -> str:
    """Return an object as HTML; to show another class, register a function here."""
    raise TypeError(f"a notebook does not show {type(view).__name__}")


@show.register
def show_trace(trace: Trace) -> str:
    """Return the report of a run."""
    return framed(trace.name, lambda: run_document(trace))


def run_document(trace: Trace) -> Document:
    view = build_overview(trace, load_ceilings(trace.manifest.environment))
    return overview(view, illustrate(trace, view), answers=find_answers(trace))


@show.register
def show_explained(view: Explained) -> str:
    """Return the comparison of two runs, with its causes."""
    return framed(f"{view.case.base_name} → {view.case.target_name}", lambda: comparison(view))


def comparison(view: Explained) -> Document:
    sides = ledger_document.illustrate_sides(view.case.before.trace, view.case.after.trace)
    return ledger_document.explained(view, (), sides)


@show.register
def show_ledger(ledger: Ledger) -> str:
    """Return the rows of a comparison."""
    return framed("base → target", lambda: ledger_rows(ledger))


@show.register
def show_prediction(answer: Prediction) -> str:
    """Return the answer to a question about a changed job."""
    return framed(f"What if: {answer.run}", lambda: whatif([answer]))


def ledger_rows(ledger: Ledger) -> Document:
    unit = "sample" if ledger.per_sample else "step"
    section = Section(
        "Where the time goes",
        (f"Time per step of the base's batch and rank. The rows add up to the {TOTAL}.",),
        ledger_document.waterfall(ledger),
        ledger_words.row_table(ledger, ledger.rows, total=True),
    )
    return Document(
        title="base → target",
        subtitle=f"Where two runs differ, by time per {unit} and rank",
        verdict=ledger_words.verdict_name(ledger.verdict),
        tone=ledger_document.TONES[ledger.verdict],
        summary=ledger_words.verdict_words(ledger),
        headline=f"{ledger_words.change_words(ledger, 'samples').capitalize()}.",
        sections=(section,),
    )


def framed(title: str, draw: Callable[[], Document]) -> str:
    """Return the page in a frame, or the reason why there is none: a notebook goes on anyway."""
    try:
        page = show_html.document(draw(), __version__)
    except ProfkitError as error:
        return f"<p>profkit: {html.escape(str(error))}</p>"
    return (
        f'<iframe sandbox="" title="{text(title)}" srcdoc="{html.escape(page)}" '
        f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
    )
