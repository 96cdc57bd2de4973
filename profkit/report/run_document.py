"""One run for the first screen: the report, and parts that add up."""

from __future__ import annotations

import dataclasses

from profkit.analysis.change_words import say_change
from profkit.analysis.views.run import RunView
from profkit.report.compiling_section import compiled_line
from profkit.report.ledger_document import APART
from profkit.report.memory_document import headline as memory_headline
from profkit.report.overview_document import overview, quality_words
from profkit.report.words import own_cost_words, role_of, steps_line
from profkit.show.document import Column, Document, Section, Table, labelled
from profkit.show.figures import NS, SHARE
from profkit.text import significant

MOST_CHANGES = 3
"""Changes of the step time that the screen shows; `profkit report` has more."""


def run(view: RunView) -> Document:
    """Return the document of `profkit report`, and what the screen `overview` adds."""
    document = overview(view.overview)
    more = (
        quality(view),
        Section("Where a step goes", table=parts(view), key="parts"),
        Section(key="hidden", table=Table(_PARTS, view.hidden)),
        Section(key="steps_apart", table=Table(APART, view.apart)),
        Section(key="step_times_ns", facts=view.points),
    )
    data = {**document.data, "wall_ns_per_step": view.wall_ns}
    return dataclasses.replace(document, sections=(*document.sections, *more), data=data)


def quality(view: RunView) -> Section:
    """Return what limits confidence in the figures, and the overhead of measuring them."""
    run = view.overview
    rows = [
        ("steps", steps_line(run).removeprefix("steps").strip()),
        ("overhead", own_cost_words(run)),
    ]
    if run.first_loss is not None and run.last_loss is not None:
        first, last = significant(run.first_loss, 5), significant(run.last_loss, 5)
        rows.append(("loss", f"{first} at the first step, {last} at the last"))
    for change in run.changes[:MOST_CHANGES]:
        rows.append(("change", say_change(change)))
    if run.compiling is not None:
        rows.append(("compiling", compiled_line(run)))
    if run.memory:
        rows.append(("memory", f"{memory_headline(run.memory[0])} 'profkit report' shows more"))
    rows.append(("data quality", quality_words(run)))
    for flag in run.flags:
        rows.append(("flag", flag))
    if run.config.get("reduced"):
        rows.append(("reduced", str(run.config["reduced"])))
    return Section("Confidence and data quality", table=labelled(rows))


_PARTS = (
    Column("name", "part", lambda part: part.name, role=role_of, stretches=True),
    Column("ns_per_step", "per step", lambda part: part.step_ns, NS),
    Column("host_ns_per_step", "host", lambda part: part.host_ns, NS),
    Column("share", "share", lambda part: part.share, SHARE, interval=True),
)


def parts(view: RunView) -> Table:
    """Return the parts, each with what is inside it, and then hidden time for people."""
    hidden = []
    for part in view.hidden:
        hidden.append(dataclasses.replace(part, name=f"hidden: {part.name}"))
    shown = (*view.parts, *hidden)
    return Table(_PARTS, view.parts, shown, lambda part: part.inside, only_known=True)
