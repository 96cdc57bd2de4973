"""The sections of a run with several ranks: exchange by rank, collectives by link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from profkit.analysis.bandwidth import name_group
from profkit.analysis.overview import Overview
from profkit.frame.exchange import LateRank, RankExchange
from profkit.frame.phases import UNKNOWN
from profkit.show.document import NAMED, Column, Quantity, Section, Table, data_columns, missing
from profkit.show.figures import BYTES, BYTES_PER_S, MS, NS, NUMBER
from profkit.text import duration, percent, plural

MIN_EXCESS = 0.25
"""A phase that is longer by less than this share of the wait does not explain it."""
MOST_RANKS = 8
MOST_LINKS = 6

_BY_RANK = (
    Column("rank", "rank", lambda part: part.rank),
    Column("exposed_ms", "exposed", lambda part: part.exposed_ns, MS),
    Column("waiting_ms", "waiting", lambda part: part.waiting_ns, MS),
    Column("transfer_ms", "transfer", lambda part: part.transfer_ns, MS),
    Column("not_ready_ms", "not ready", lambda part: part.not_ready_ns, MS),
    Column("hidden_ms", "hidden", lambda part: part.hidden_ns, MS),
)

LINKS = (
    Column("op", "operation", lambda use: use.op),
    Column("", "over", name_group),
    Column("messages_per_step", "messages", lambda use: use.messages_per_step, NUMBER),
    Column("bytes_per_step", "bytes", lambda use: use.bytes_per_step, BYTES),
    Column("transfer_ns_per_step", "transfer", lambda use: use.transfer_ns_per_step, NS),
    Column(
        "algorithm_bytes_per_s", "algorithm", lambda use: use.algorithm_bytes_per_s, BYTES_PER_S
    ),
    Column("bus_bytes_per_s", "bus", lambda use: use.bus_bytes_per_s, BYTES_PER_S),
    Column(
        "ceiling_bus_bytes_per_s", "alone", lambda use: use.ceiling_bus_bytes_per_s, BYTES_PER_S
    ),
    *data_columns("communicator", "backend", "group_size", "share_of_ceiling"),
)
"""What a communicator moves per step, how fast, and what its link reaches alone."""


COMPILED_WAITS = (
    "Compiled code may wait for a collective inside of a phase, which profkit does not see: what "
    "is called hidden may be such a wait."
)


def exchange_sections(view: Overview) -> Iterator[Section]:
    if view.exchange is None:
        yield from missing("exchange")
    else:
        yield by_rank(view, view.exchange.ranks)
    yield by_link(view)


def by_rank(view: Overview, ranks: Sequence[RankExchange]) -> Section:
    """Return the exchange by rank: hidden, or exposed in its parts."""
    shown = sorted(ranks, key=lambda part: -part.exposed_ns)[:MOST_RANKS]
    notes = []
    if len(ranks) > len(shown):
        left = plural(len(ranks) - len(shown), "more rank")
        notes.append(f"The {MOST_RANKS} ranks with the longest exposed time; {left} in --json.")
    if words := waiting_words(view):
        notes.append(words)
    if view.compiling is not None and any(part.hidden_ns for part in ranks):
        notes.append(COMPILED_WAITS)
    table = Table(_BY_RANK, ranks, sorted(shown, key=lambda part: part.rank))
    # Nothing in another tool's trace says which collectives carry gradients.
    imported = "imported_from" in view.config
    title = "Communication per step" if imported else "Exchange per step"
    brief = NAMED
    if notes:
        brief = Section(title, (notes[0],), kept=view.late_rank is not None)
    facts = _facts(view)
    return Section(title, tuple(notes), table=table, brief=brief, key="exchange", facts=facts)


def _facts(view: Overview) -> dict[str, Any]:
    exchange, late, late_rank = view.exchange, view.late_rank, None
    if late is not None:
        late_rank = {
            "rank": late.rank,
            "share": late.share,
            "waited_ms": Quantity(late.waited_ns, MS),
            "phase": late.phase,
            "excess_ms": Quantity(late.excess_ns, MS),
            "also_ms": Quantity(late.also_ns, MS),
        }
    seen: tuple[Any, ...] = (None, None, None)
    if exchange:
        seen = (exchange.collectives, exchange.matched, exchange.waited_for)
    names = ("collectives", "collectives_seen_on_all_ranks", "share_of_waiting_by_late_rank")
    return {**dict(zip(names, seen, strict=True)), "late_rank": late_rank}


def waiting_words(view: Overview) -> str:
    """Name the rank that the others wait for, or say why nobody can be named."""
    exchange, late = view.exchange, view.late_rank
    if exchange and exchange.matched < exchange.collectives:
        missing = exchange.collectives - exchange.matched
        return (
            f"It is not known who waits: {missing:,} of {exchange.collectives:,} collectives "
            "were not seen on all of their ranks, or it is not known which these are."
        )
    if not late:
        return ""
    return say_late(late) + late_words(late)


def say_late(late: LateRank) -> str:
    """Return how long the others wait for any rank, and how much of all waiting is for one."""
    return (
        f"rank {late.rank} is late: the others wait {duration(late.waited_ns)} per step, and "
        f"{percent(late.share, 0)} of the waiting of all ranks is for this one"
    )


def late_words(late: LateRank) -> str:
    """Return in which phases a late rank takes longer; empty if they do not explain it."""
    longer = {late.phase: late.excess_ns, **late.also_ns}
    if sum(longer.values()) < MIN_EXCESS * late.waited_ns:
        return ""
    phases: list[str] = []
    for phase, ns in longer.items():
        where = "time outside all phases" if phase == UNKNOWN else phase
        phases.append(f"its {where}{'' if phases else ' takes'} {duration(ns)}")
    return f"; {' and '.join(phases)} longer than the others'"


def by_link(view: Overview) -> Section:
    """Return what each communicator moves per step, how fast, and what its link reaches alone."""
    links = view.links
    notes = []
    if len(links) > MOST_LINKS:
        notes.append(f"The first {MOST_LINKS}; {len(links) - MOST_LINKS:,} more in --json.")
    recorded = view.ranks_seen
    if view.exchange:
        recorded = len(view.exchange.ranks)
    elif view.costs:
        recorded -= len(view.costs.unclocked)
    ranks = max([view.world_size, *(use.group_size for use in links)])
    if recorded < ranks:
        notes.append(
            f"{plural(recorded, 'rank')} of {ranks:,} recorded them: "
            "transfer may include waiting for the others."
        )
    if any(use.transfer_ns_per_step is None for use in links):
        notes.append(
            "The ends of single messages were not recorded, so their transfer time is not known."
        )
    if any(not use.bytes_per_step for use in links):
        notes.append("Without a size, the transfer is the sum of all calls.")
    table = Table(LINKS, links, links[:MOST_LINKS])
    title = "Collectives per step" if links else ""
    return Section(title, tuple(notes), table=table, brief=NAMED, key="collectives")
