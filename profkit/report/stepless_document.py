"""The report of an imported run whose source knows no steps."""

from __future__ import annotations

from collections.abc import Iterator

from profkit.analysis.stepless import Stepless
from profkit.report.log_words import source_rows
from profkit.show.document import Column, Document, Section, Table, Tone, data_columns, labelled
from profkit.show.figures import BYTES, BYTES_PER_S, COUNT, NS
from profkit.text import plural

MOST_SHOWN = 20
"""Operations of communicators on a screen; all of them are in the JSON."""


def stepless(view: Stepless) -> Document:
    """Return the document of a run without steps."""
    ranks = plural(view.world_size, "rank")
    source = str(view.config.get("imported_from") or "")
    return Document(
        title=view.name,
        subtitle=" · ".join(filter(None, (view.workload, view.framework, source, ranks))),
        verdict="no steps",
        tone=Tone.UNSURE,
        summary=(
            f"the source has {_contents(view)} and no steps, so throughput, step time and phases "
            "are not known; record the job itself ('profkit run') to measure them"
        ),
        sections=tuple(_sections(view)),
        copied=(("trace", view.path),),
        data={
            "run": view.path,
            "workload": view.workload,
            "framework": view.framework,
            "state": view.state,
            "ranks": view.world_size,
            "ranks_seen": view.ranks_seen,
            "config": view.config,
            "verdict": "cannot judge",
            "steps_seen": 0,
            "data_quality": view.quality,
            "flags": view.flags,
        },
    )


def _contents(view: Stepless) -> str:
    if view.collectives:
        return "collectives"
    return "results" if view.config.get("stated") else "nothing that profkit shows"


def _sections(view: Stepless) -> Iterator[Section]:
    # How a log counts its steps is no matter here.
    stated = [row for row in source_rows(view.config) if row[0] != "log"]
    if stated:
        yield Section("What the log states", table=labelled(stated))
    yield _collectives(view)
    quality = [("data quality", text) for text in (*view.quality, *view.flags)]
    if quality:
        yield Section("Confidence and data quality", table=labelled(quality))


def _collectives(view: Stepless) -> Section:
    notes = ["Calls are those of all ranks in the source; bytes and time are the mean of a call."]
    if any(each.ns_per_call for each in view.collectives):
        notes.append("A rank's time contains its wait for the others, so the bus can do more.")
    if len(view.collectives) > MOST_SHOWN:
        more = plural(len(view.collectives) - MOST_SHOWN, "more row")
        notes.append(f"{more} in --json.")
    table = Table(_CALLS, view.collectives, view.collectives[:MOST_SHOWN])
    title = "Collectives" if view.collectives else ""
    return Section(title, tuple(notes), table=table, key="collective_calls")


_CALLS = (
    Column("communicator", "communicator", lambda each: each.communicator),
    Column("op", "operation", lambda each: each.op),
    Column("backend", "backend", lambda each: each.backend),
    Column("", "ranks", lambda each: f"{each.ranks:,} of {each.group_size:,}", COUNT),
    Column("calls", "calls", lambda each: each.calls, COUNT),
    Column("bytes_per_call", "bytes", lambda each: each.bytes_per_call, BYTES),
    Column("ns_per_call", "time", lambda each: each.ns_per_call, NS),
    Column("bus_bytes_per_s", "bus", lambda each: each.bus_bytes_per_s, BYTES_PER_S),
    *data_columns("group_size", "ranks"),
)
