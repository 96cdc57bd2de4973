"""Runs compared with published figures."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.analysis.published_file import PublishedFigure, device_model
from profkit.explain.published import PublishedComparison
from profkit.report.log_words import coverage, sample_unit
from profkit.show.document import Column, Document, Fact, Section, Table, Tone
from profkit.show.figures import NUMBER, SHARE, Unit, interval_words, plain
from profkit.text import plural, significant


def published(compared: PublishedComparison) -> Document:
    """Return the document of one run and the figures that were published for its setting."""
    view = compared.view
    unit = Unit(lambda value: f"{plain(value)} {sample_unit(view.config)}/s")
    detail = ", ".join(filter(None, (interval_words(view.throughput, plain), coverage(view))))
    verdict, tone = _verdict(compared)
    return Document(
        title=view.name,
        subtitle="A run and what was published for its setting",
        verdict=verdict,
        tone=tone,
        summary=_setting(compared),
        facts=(Fact("throughput_samples_per_s", "throughput", view.throughput, unit, detail),),
        warnings=tuple(view.flags),
        sections=(section([compared]),),
        copied=(("trace", view.path),),
        data={"run": view.name, "verdict": verdict},
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
    notes: list[str] = []
    for compared in sides:
        if not compared.figures:
            notes.append(f"{compared.view.name}: {_setting(compared)}")
    rows = [(compared, each) for compared in sides for each in compared.figures]
    return Section(
        "Published figures", tuple(notes), table=Table(_FIGURES, rows), kept=True, key="published"
    )


def _source(row: tuple[PublishedComparison, PublishedFigure]) -> str:
    _, each = row
    words = ", ".join(filter(None, (each.source, each.model, each.framework, each.gpu)))
    return ": ".join(filter(None, (f"line {each.line}" if each.line else "", words)))


_FIGURES = (
    Column("run", "run", lambda row: row[0].view.name),
    Column(
        "", "published", lambda row: f"{significant(row[1].throughput, 5)} {row[1].unit}", NUMBER
    ),
    Column("ratio", "run / published", lambda row: row[0].ratio(row[1]), SHARE),
    Column("", "agrees", lambda row: "yes" if row[0].agrees(row[1]) else "no"),
    Column("agrees", None, lambda row: row[0].agrees(row[1])),
    Column("", "source", _source),
    Column("source", None, lambda row: row[1].source),
    Column("line", None, lambda row: row[1].line),
    Column("throughput", None, lambda row: row[1].throughput),
    Column("unit", None, lambda row: row[1].unit),
)
