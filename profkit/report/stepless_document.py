"""The report of an imported run whose source knows no steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from profkit.analysis.stepless import Stepless
from profkit.report.document import Document, Grid, Section, Tone, labelled
from profkit.report.log_words import source_rows
from profkit.text import byte_size, plural

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
        figures=(),
        warnings=(),
        sections=tuple(_sections(view)),
        copied=(("trace", view.path),),
    )


def _contents(view: Stepless) -> str:
    if view.collectives:
        return "collectives"
    return "results" if view.config.get("stated") else "nothing that profkit shows"


def _sections(view: Stepless) -> Iterator[Section]:
    # How a log counts its steps is no matter here.
    stated = [row for row in source_rows(view.config) if row[0] != "log"]
    if stated:
        yield Section("What the log states", grid=labelled(stated))
    if view.collectives:
        yield _collectives(view)
    quality = [("data quality", text) for text in (*view.quality, *view.flags)]
    if quality:
        yield Section("Confidence and data quality", grid=labelled(quality))


def _collectives(view: Stepless) -> Section:
    rows = []
    for each in view.collectives[:MOST_SHOWN]:
        seen = f"{each.ranks:,} of {each.group_size:,}"
        size = byte_size(round(each.bytes_per_call))
        rows.append((each.communicator, each.op, each.backend, seen, f"{each.calls:,}", size))
    notes = ["Calls are those of all ranks in the source; bytes are the mean of a call."]
    if len(view.collectives) > MOST_SHOWN:
        more = plural(len(view.collectives) - MOST_SHOWN, "more row")
        notes.append(f"{more} in --json.")
    header = ("communicator", "operation", "backend", "ranks", "calls", "bytes")
    return Section(
        "Collectives", notes=tuple(notes), grid=Grid(header, tuple(rows), frozenset({3, 4, 5}))
    )


def as_json(view: Stepless) -> dict[str, Any]:
    """Return what `profkit report --json` prints of such a run."""
    return {
        "run": view.path,
        "workload": view.workload,
        "framework": view.framework,
        "state": view.state.value,
        "ranks": view.world_size,
        "ranks_seen": view.ranks_seen,
        "config": dict(view.config),
        "verdict": "cannot judge",
        "steps_seen": 0,
        "collective_calls": [dataclasses.asdict(each) for each in view.collectives],
        "data_quality": list(view.quality),
        "flags": list(view.flags),
    }
