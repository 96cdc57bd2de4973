"""Runs compared with published figures, as a document and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from profkit.analysis.published_file import device_model
from profkit.explain.published import PublishedComparison
from profkit.report import view_json
from profkit.report.document import Document, Grid, Section, Tone
from profkit.report.log_words import coverage, sample_unit
from profkit.report.words import interval_words, plain
from profkit.text import percent, plural, significant


def published(compared: PublishedComparison) -> Document:
    """Return the document of one run and the figures that were published for its setting."""
    view = compared.view
    speed = f"{plain(view.throughput.value)} {sample_unit(view.config)}/s"
    covered = filter(None, (interval_words(view.throughput, plain), coverage(view)))
    verdict, tone = _verdict(compared)
    return Document(
        title=view.name,
        subtitle="A run and what was published for its setting",
        verdict=verdict,
        tone=tone,
        summary=_setting(compared),
        figures=(("throughput", speed, ", ".join(covered)),),
        warnings=tuple(view.flags),
        sections=(section([compared]),),
        copied=(("trace", view.path),),
    )


def _verdict(compared: PublishedComparison) -> tuple[str, Tone]:
    if not compared.figures:
        return "nothing published", Tone.UNSURE
    if not compared.view.judged:
        return "inconclusive", Tone.UNSURE
    if compared.agrees(compared.figures[0]):
        return "as published", Tone.GOOD
    return "not as published", Tone.BAD


def _setting(compared: PublishedComparison) -> str:
    """Return the setting for which figures were looked up, and how many there are."""
    run, config = compared.run, compared.run.config
    words = [
        plural(run.world_size, "rank"),
        str(config.get("precision") or "precision not stated (fp32 is looked up)"),
        f"batch {config['batch_size']} per rank" if "batch_size" in config else "batch not stated",
        run.framework or "framework not stated",
        device_model(run) or "the model of the device is not recorded",
    ]
    found = plural(len(compared.figures), "row")
    return f"{found} of {compared.in_file:,} for this setting: {', '.join(words)}"


def section(sides: Sequence[PublishedComparison]) -> Section:
    """Return the table of all published figures for the runs."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for compared in sides:
        rows += _rows(compared)
        if not compared.figures:
            notes.append(f"{compared.view.name}: {_setting(compared)}")
    header = ("run", "published", "run / published", "agrees", "source")
    grid = Grid(header, tuple(rows), frozenset({1, 2})) if rows else None
    return Section("Published figures", tuple(notes), grid=grid)


def _rows(compared: PublishedComparison) -> Iterator[tuple[str, ...]]:
    for each in compared.figures:
        words = ", ".join(filter(None, (each.source, each.model, each.framework, each.gpu)))
        yield (
            compared.view.name,
            f"{significant(each.throughput, 5)} {each.unit}",
            percent(compared.ratio(each)),
            "yes" if compared.agrees(each) else "no",
            ": ".join(filter(None, (f"line {each.line}" if each.line else "", words))),
        )


def as_json(compared: PublishedComparison) -> dict[str, Any]:
    figures = []
    for each in compared.figures:
        row = {"line": each.line, "throughput": each.throughput, "unit": each.unit}
        row |= {"source": each.source, "ratio": compared.ratio(each)}
        figures.append(row | {"agrees": compared.agrees(each)})
    return {
        "run": compared.view.name,
        "throughput_samples_per_s": view_json.of(compared.view.throughput),
        "verdict": _verdict(compared)[0],
        "published": figures,
    }
