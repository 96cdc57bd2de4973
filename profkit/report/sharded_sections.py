"""The sections of sharded jobs: the exchange by dimension, and the stages of a pipeline."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

from profkit.analysis.exchange_places import BETWEEN
from profkit.analysis.place_costs import Pipeline, PlaceCost, ShardedExchange
from profkit.explain.exchange_ledger import ExchangeLedger
from profkit.explain.ledger import Ledger
from profkit.report import ledger_words
from profkit.show.document import Column, Section, Table, missing
from profkit.show.figures import BYTES, COUNT, NS, NUMBER
from profkit.text import duration, percent, safe_text

MOST_PLACES = 10
MOST_STAGES = 8
MOST_MODULES = 3
MOST_ROWS = 8

MIN_MODULE_SHARE = 0.1
"""Modules are named from this share of the exposed exchange of a step on."""

DIMENSIONS_TITLE = "Exchange by dimension, per step and rank"
STAGES_TITLE = "Pipeline, per step"
NO_NAME = "a group without a name"
NO_WAITS = "it is not known what is waiting for another rank, and what is transfer"
MEASURE_STAGES = "record the ranks of all stages"


def sharded_sections(found: ShardedExchange | None) -> Iterator[Section]:
    key = "exchange_by_dimension"
    if found is None:
        yield from missing(key)
        return
    yield by_dimension(found)
    if found.pipeline is not None:
        yield by_stage(found.pipeline)
    yield Section(key=key, facts=found)


def by_dimension(found: ShardedExchange) -> Section:
    """Return operations, bytes and exposed time by dimension, operation and phase."""
    notes = [*dimension_notes(found)]
    left = len(found.places) - MOST_PLACES
    if left > 0:
        more = f"The {MOST_PLACES} with the longest exposed time; {left:,} more in --json."
        notes.insert(0, more)
    table = Table(dimension_columns(found), found.places, found.places[:MOST_PLACES])
    return Section(DIMENSIONS_TITLE, tuple(notes), table=table)


def dimension_columns(found: ShardedExchange) -> tuple[Column, ...]:
    """Return what each dimension, operation and phase sends, and how long ranks wait for it."""
    late = {each.dimension: each.rank for each in found.late}
    return (
        Column("", "dimension", lambda cost: safe_text(cost.dimension) or None),
        Column("", "operation", lambda cost: safe_text(cost.op)),
        Column("", "phase", lambda cost: "between" if cost.around == BETWEEN else cost.around),
        Column("", "ranks", lambda cost: cost.group_size, COUNT),
        Column("", "calls", lambda cost: cost.operations, NUMBER),
        Column("", "bytes", lambda cost: cost.bytes, BYTES),
        Column("", "exposed", lambda cost: cost.exposed_ns, NS),
        Column("", "waiting", lambda cost: cost.waiting_ns, NS),
        Column("", "transfer", lambda cost: cost.transfer_ns, NS),
        Column("", "hidden", lambda cost: cost.hidden_ns, NS),
        Column("", "late rank", lambda cost: late.get(cost.dimension), COUNT),
    )


STAGE_COLUMNS = (
    Column("", "rank", lambda stage: stage.rank, COUNT),
    Column("", "stages", lambda stage: ", ".join(map(str, stage.stages)) or None),
    Column("", "computes", lambda stage: stage.compute_ns, NS),
    Column("", "waits", lambda stage: stage.exposed_ns, NS),
    Column("", "imbalance", lambda stage: stage.imbalance_ns, NS),
    Column("", "bubble", lambda stage: stage.bubble_ns, NS),
    Column("", "rest", lambda stage: stage.rest_ns, NS),
)
"""How long each rank of a pipeline computes, and the parts of its waits."""


def dimension_notes(found: ShardedExchange) -> Iterator[str]:
    """Yield what the rows of the exchange do not say: late ranks, and modules."""
    if not found.is_complete:
        named = ", ".join(safe_text(name) or NO_NAME for name in found.unknown)
        what_next = f"; {found.next}" if found.next else ""
        yield f"In {named}, {NO_WAITS}: {safe_text(found.why)}{what_next}."
    for late in found.late:
        name = safe_text(late.dimension) or NO_NAME
        yield (
            f"In {name}, rank {late.rank} is late: the ranks of its group wait "
            f"{duration(late.waited_ns)} per step for it, {percent(late.share, 0)} of the waiting "
            "in this dimension."
        )
    whole = math.fsum(map(operator.attrgetter("exposed_ns"), found.places))
    longest = []
    for cost in found.places:
        for module, ns in cost.modules.items():
            if whole > 0 and ns >= MIN_MODULE_SHARE * whole:
                longest.append((ns, f"{safe_text(module)} ({_what(cost)}) {duration(ns)}"))
    if longest:
        _, names = zip(*sorted(longest, reverse=True)[:MOST_MODULES], strict=True)
        yield f"Modules with the longest exposed exchange: {', '.join(names)}."


def _what(cost: PlaceCost) -> str:
    where = cost.around if cost.around == BETWEEN else f"in {cost.around}"
    return f"{safe_text(cost.op)} {where}"


def by_stage(pipeline: Pipeline) -> Section:
    """Return how long each rank of a pipeline computes, and why it waits for messages."""
    notes = [*stage_notes(pipeline)]
    left = len(pipeline.stages) - MOST_STAGES
    if left > 0:
        notes.append(f"The first {MOST_STAGES} ranks; {left:,} more in --json.")
    table = Table(STAGE_COLUMNS, pipeline.stages, pipeline.stages[:MOST_STAGES])
    return Section(STAGES_TITLE, tuple(notes), table=table)


def stage_notes(pipeline: Pipeline) -> Iterator[str]:
    """Yield the schedule, and what the parts of the waits mean."""
    schedule = f"{safe_text(pipeline.schedule)}, " if pipeline.schedule else ""
    yield f"{schedule}microbatches per step: {pipeline.microbatches:,}."
    if pipeline.why:
        yield f"Why the ranks wait is not known: {pipeline.why}; {MEASURE_STAGES}."
    elif any(each.bubble_ns is None for each in pipeline.stages):
        yield (
            "How long the schedule alone leaves a rank idle is not known: the run does not name a "
            "schedule for which profkit can compute it."
        )
    else:
        yield (
            "Imbalance: the rank computes less than the slowest one. Bubble: the schedule fills "
            "and drains the other stages. Rest: transfers, late ranks and all else."
        )


def exchange_places(found: ExchangeLedger | None, ledger: Ledger) -> Iterator[Section]:
    """Yield the exchange of two runs by place, in rows that add up to that of the exchange."""
    if found is None:
        yield from missing("exchange_by_dimension")
        return
    rows = found.rows()
    notes = ["Exposed time. The rows add up to the row of the exchange."]
    if ledger.has_repeats:
        notes[0] = "Exposed time of the two runs of middle speed, which the rows add up to."
    if len(rows) > MOST_ROWS:
        notes.append(f"The {MOST_ROWS} longest; {len(rows) - MOST_ROWS:,} more in --json.")
    if found.unknown:
        named = ", ".join(safe_text(name) or NO_NAME for name in sorted(found.unknown))
        notes.append(f"In {named}, {NO_WAITS}: not all ranks of each collective were seen.")
    table = ledger_words.row_table(ledger, rows, rows[:MOST_ROWS])
    yield Section("Exchange by dimension", tuple(notes), table=table, key="exchange_by_dimension")
