"""The scaling of a job over several runs as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from profkit.explain.meeting import Meeting
from profkit.explain.scaling import FACTORS, ScalingRow
from profkit.frame.estimate import Estimate
from profkit.report import ledger_words
from profkit.report.exchange_sections import LINKS
from profkit.show.document import Column, Document, Section, Table, Tone, data_columns, labelled
from profkit.show.figures import COUNT, NUMBER, RATE, interval_in_brackets
from profkit.text import percent, plural

_MEETING_RANKS = (
    *data_columns("rank", last_in_collectives="last_in", share_of_waiting="share", phase="phase"),
    Column("excess_ns_per_step", None, lambda each: each.excess_ns if each.phase else None),
)


def scaling(rows: Sequence[ScalingRow]) -> Document:
    """Return the document of several runs, each against the first."""
    last = rows[-1]
    efficiency = f"efficiency {percent(last.efficiency.value)} on {plural(last.gpus, 'rank')}"
    notes = (f"efficiency = {' x '.join(FACTORS)}",)
    runs: list[tuple[str, str]] = []
    for row in rows[1:]:
        runs += limits(row)
    return Document(
        title=" → ".join(row.name for row in rows),
        subtitle="How the job scales",
        verdict=efficiency,
        tone=Tone.UNSURE if last.doubt else Tone.PLAIN,
        summary=last.doubt,
        headline=headline(last),
        sections=(
            Section("Scaling", notes, table=Table(SCALING, rows), key="runs"),
            Section("Against the first run", table=labelled(runs)),
        ),
    )


def limits(row: ScalingRow) -> Iterator[tuple[str, str]]:
    """Yield what limits a run's efficiency, and for which rank its ranks wait."""
    yield row.name, ledger_words.scaling_words(row)
    if not row.waiting_known:
        yield "", "waiting is not separated from transfer here: communication includes it"
    for words in ledger_words.meeting_words(row.meeting):
        yield "", words


def headline(last: ScalingRow) -> str:
    """Return the efficiency of the last run, and what costs most of it."""
    efficiency = last.efficiency
    words = (
        f"On {plural(last.gpus, 'rank')} the efficiency is {percent(efficiency.value)}"
        f"{interval_in_brackets(efficiency, percent)}"
    )
    if last.largest_loss:
        words += f"; most is lost to {last.largest_loss}"
    return f"{words}."


def _factor(name: str, row: ScalingRow) -> Estimate:
    return row.factors[name]


def _of_factor(name: str) -> Column:
    title = name.removeprefix("exposed ")
    return Column("", title, partial(_factor, name), NUMBER)


def _meeting(found: Meeting | None) -> dict[str, Any] | None:
    """Return who waits for whom, for programs."""
    if found is None:
        return None
    return {
        "collectives": found.collectives,
        "collectives_seen_on_all_ranks": found.matched,
        "timed": found.timed,
        "waiting_ns_per_step": found.waiting_ns,
        "transfer_ns_per_step": found.transfer_ns,
        "waited_for": Table(_MEETING_RANKS, found.waited_for),
        "links": Table(LINKS, found.links),
    }


SCALING = (
    Column("run", "run", lambda row: row.name, stretches=True),
    Column("ranks", "ranks", lambda row: row.gpus, COUNT),
    Column("throughput_samples_per_s", "throughput", lambda row: row.throughput, RATE),
    Column("speed_up_ratio", "speed-up", lambda row: row.speed_up, NUMBER),
    Column("efficiency_share", "efficiency", lambda row: row.efficiency, NUMBER),
    *map(_of_factor, FACTORS),
    *data_columns(factors_ratio="factors", why_impossible="doubt", why_no_factors="clocks"),
    *data_columns("waiting_known", "exchange_timed", "largest_loss"),
    Column("meeting", None, lambda row: _meeting(row.meeting)),
)
"""The figures of a run; the factors multiply to its efficiency."""
