"""The loader as columns and lines: who makes batches, and the model of more workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from profkit.analysis.views.loader import LOOP, LoaderView, WorkersModel
from profkit.report.advice import MAX_NO_CORE_SHARE, making_words
from profkit.show.document import Column, Table
from profkit.show.figures import COUNT, NS, NUMBER, WHOLE_SHARE
from profkit.text import duration, percent, plural
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import Piece

_OF_LOOP: Final = {LOOP: " (the loop)"}


def summary_lines(
    view: LoaderView, palette: Palette, *, of_log: bool = False
) -> Iterator[list[Piece]]:
    """Yield how long a step waits for data, and how many workers would hide the loader."""
    dim = palette.style("dim")
    if view.step_ns is None or view.wait_ns is None or view.wait_share is None:
        yield [("no steps are used, so nothing is known about their data", None)]
        return
    waits = f"{duration(view.wait_ns)} for data, {percent(view.wait_share)} of it"
    steps = plural(view.steps, "step")
    yield [(f"a step of {duration(view.step_ns)} waits {waits}", None), (f"   {steps}", dim)]
    model = view.model
    if model is None:
        words = "the loader's internals were not recorded: only torch's and Paddle's own are timed"
        if of_log:
            words = "a training log says nothing of its loader: record the job itself (profkit run)"
        yield [(words, dim)]
        return
    if view.unexplained_ns:
        explained, waits = duration(model.now.wait_ns), duration(view.wait_ns)
        words = (
            f"making the batches explains {explained} of these {waits}: the rest of the wait is "
        )
        words += "elsewhere, so it is inconclusive what more workers would change"
        yield [(words, palette.style("unsure"))]
        return
    yield [(_verdict(model), None)]
    if model.no_core_share > MAX_NO_CORE_SHARE:
        share = percent(model.no_core_share, 0)
        words = f"{share} of making a batch is waiting for a core; more workers would wait too"
        yield [(words, palette.style("bad"))]
    words = "the model assumes that workers slow down neither each other nor the job"
    if view.cpu_count:
        words += f" (there are {plural(view.cpu_count, 'core')}"
        if view.shares_cores:
            words += ", which the job also computes on"
        words += ")"
    yield [(words, dim)]


def _verdict(model: WorkersModel) -> str:
    """Return how fast batches are made, and how many workers would hide the loader."""
    words = making_words(model)
    if model.enough is None:
        return f"{words}: nothing can hide the loader"
    if model.workers >= model.enough:
        return f"{words}: the loader is hidden"
    return f"{words}: {plural(model.enough, 'worker')} would hide the loader"


MAKERS: Final = (
    Column("", "batches are made by", lambda maker: maker.name + _OF_LOOP.get(maker.kind, "")),
    Column("", "rank", lambda maker: maker.rank, COUNT),
    Column("", "batches", lambda maker: maker.batches, COUNT),
    Column("", "per batch", lambda maker: maker.making_ns, NS),
    Column("", "read", lambda maker: maker.read_ns, NS),
    Column("", "decode", lambda maker: maker.decode_ns, NS),
    Column("", "collate", lambda maker: maker.collate_ns, NS),
    Column("", "no core", lambda maker: maker.no_core_ns, NS),
    Column("", "queue", lambda maker: maker.queue_ns, NS),
    Column("", "busy", lambda maker: maker.busy_share, WHOLE_SHARE),
)
"""The workers, or the loop, that make batches."""


def model_table(model: WorkersModel) -> Table:
    """Return what the model predicts for each number of workers.

    The current number of workers and the one that is enough are marked.
    """

    def mark(row: Any) -> str:
        words = ["now"] if row.workers == model.workers else []
        return ", ".join([*words, "enough"] if row.workers == model.enough else words)

    columns = (
        Column("", "workers", lambda row: row.workers, COUNT),
        Column("", "", mark, role=lambda words: "accent" if words else ""),
        Column("", "ready every", lambda row: row.delivery_ns, NS),
        Column("", "per step", lambda row: row.step_ns, NS),
        Column("", "waits", lambda row: row.wait_ns, NS),
        Column("", "cores busy", lambda row: row.cores, NUMBER),
    )
    return Table(columns, model.tried)
