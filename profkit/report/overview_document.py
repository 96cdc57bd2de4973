"""One run as a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from profkit.analysis.overview import Overview, PhaseShare
from profkit.analysis.views.pictures import USED, RankPhases, StepPoint, rank_phases, step_points
from profkit.report import as_text
from profkit.report.document import Chart, Document, Grid, Heat, Section, Shares, Strip, Tone
from profkit.text import duration, percent, plural, significant
from profkit.trace import Trace

HEADROOM = 1.3
"""A strip of steps shows up to this many times the highest steady one."""


@dataclass(frozen=True)
class Illustrated:
    """The figures of one run, with what is drawn beside them."""

    view: Overview
    points: tuple[StepPoint, ...]
    ranks: RankPhases | None


def illustrate(trace: Trace, view: Overview) -> Illustrated:
    return Illustrated(
        view,
        step_points(trace.steps, view.selection),
        rank_phases(trace.steps, trace.spans, view.selection),
    )


def overview(run: Illustrated) -> Document:
    view = run.view
    parts = (
        view.workload,
        view.framework,
        str(view.config.get("precision") or ""),
        plural(view.world_size, "rank"),
        str(view.config.get("device") or ""),
    )
    return Document(
        title=view.name,
        subtitle=" · ".join(part for part in parts if part),
        verdict="measured" if view.judged else "cannot judge",
        tone=Tone.PLAIN if view.judged else Tone.UNSURE,
        summary=as_text.steps_line(view).removeprefix("steps").strip()
        + ("" if view.judged else f"; cannot judge: {as_text.why_not_judged(view)}"),
        figures=tuple(_figures(view)),
        warnings=tuple(_warnings(view)),
        sections=tuple(_sections(run)),
    )


def _figures(view: Overview) -> Iterator[tuple[str, str, str]]:
    yield (
        "throughput",
        f"{significant(view.throughput.value, 4)} samples/s",
        as_text.interval_words(view.throughput, as_text.plain),
    )
    yield "step", duration(view.step_ns.value, 4), as_text.interval_words(view.step_ns, duration)
    if view.first_loss is not None and view.last_loss is not None:
        yield (
            "loss",
            significant(view.last_loss, 5),
            f"{significant(view.first_loss, 5)} at the first step",
        )
    total = view.own_cost.total_ns
    share = (
        percent(total / view.step_ns.value, 3)
        if total is not None and view.step_ns.value > 0
        else ""
    )
    yield (
        "profkit's own cost",
        "not measured" if total is None else f"{duration(total)} a step",
        share and f"{share} of a step",
    )


def _warnings(view: Overview) -> Iterator[str]:
    if view.own_cost.exceeds_budget(view.step_ns.value):
        yield f"profkit cost this run more than it may (1 % of a step or 0.15 ms): {as_text.own_cost_words(view)}"
    if reduced := view.config.get("reduced"):
        yield f"reduced for this machine: {reduced}"


def _sections(run: Illustrated) -> Iterator[Section]:
    view = run.view
    if view.phases:
        yield Section(
            "Where a step goes",
            charts=(("", Shares(tuple((part.name, part.share.value) for part in view.phases))),),
            grid=_phases(view.phases),
        )
    yield Section(
        "Step times",
        charts=(("", strip(run.points)),),
        notes=("The wall time of each step, as the mean over its ranks.",),
    )
    yield from ranks_section(run, "Ranks")
    if blocks := as_text.details(view):
        yield Section("Exchange and kernels", verbatim="\n\n".join(blocks))
    yield quality((("", view),))
    yield Section(
        "What ran", grid=Grid(("setting", "value"), tuple(flat(view.config))), folded=True
    )


def _phases(phases: tuple[PhaseShare, ...]) -> Grid:
    rows = tuple(
        (
            part.name,
            percent(part.share.value),
            _share_interval(part),
            duration(part.step_ns.value),
            as_text.meaning(part.name),
        )
        for part in phases
    )
    return Grid(
        ("phase", "share", "95 % interval", "a step", "what that is"), rows, frozenset({1, 2, 3})
    )


def _share_interval(part: PhaseShare) -> str:
    low, high = part.share.low, part.share.high
    return (
        "-"
        if low is None or high is None
        else f"{percent(low).removesuffix(' %')} to {percent(high)}"
    )


def strip(points: tuple[StepPoint, ...], beside: tuple[StepPoint, ...] = ()) -> Strip:
    """On a scale that shows the steady steps, of both runs where two are shown one below the other."""
    all_points = (*points, *beside)
    used = [point.high_ns for point in all_points if point.kind == USED] or [
        point.high_ns for point in all_points
    ]
    return Strip(points, HEADROOM * max(used))


def ranks_section(run: Illustrated, title: str) -> Iterator[Section]:
    """The heat map, where there are ranks to compare."""
    found = run.ranks
    if found is None:
        return
    left = found.ranks_in_all - len(found.ranks)
    notes = (
        [f"The {len(found.ranks)} ranks that differ most, of {found.ranks_in_all:,}."]
        if left
        else []
    )
    chart: Chart = Heat(found)
    header = ("rank", *found.phases)
    rows = tuple(
        (str(rank), *map(duration, cells))
        for rank, cells in zip(found.ranks, found.step_ns, strict=True)
    )
    yield Section(
        title,
        tuple(notes),
        (("", chart),),
        Grid(header, rows, frozenset(range(1, len(header))), drawn=True),
    )


def quality(runs: tuple[tuple[str, Overview], ...]) -> Section:
    """What a reader must know before believing the figures, and what measuring them cost."""
    rows: list[tuple[str, str]] = []
    for side, view in runs:
        prefix = f"{side}: " if side else ""
        rows.append(
            (prefix + "data quality", "; ".join(view.quality) or "complete, no rows dropped")
        )
        rows += [
            (prefix + label if label else "", text) for label, text in as_text.source_rows(view)
        ]
        rows += [(prefix + "flag", flag) for flag in view.flags]
        rows.append((prefix + "profkit's cost", as_text.own_cost_words(view)))
        rows.append((prefix + "trace", view.path))
    return Section("Data quality, and profkit's own cost", grid=Grid(("", ""), tuple(rows)))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as names with points in them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif (
            value is not None
            and value != ""
            and not (isinstance(value, float) and math.isnan(value))
        ):
            yield f"{prefix}{name}", str(value)
