"""The sections of a run with several ranks: exchange by rank, collectives by link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.bandwidth import name_group
from profkit.analysis.exchange import LateRank, RankExchange
from profkit.analysis.overview import Overview
from profkit.analysis.phases import UNKNOWN
from profkit.report.document import Grid, Section
from profkit.report.words import known
from profkit.text import byte_size, bytes_per_second, duration, percent, plural, significant

MIN_EXCESS = 0.25
"""A phase that is longer by less than this share of the wait does not explain it."""
MOST_RANKS = 8
MOST_LINKS = 6


COMPILED_WAITS = (
    "Compiled code may wait for a collective inside of a phase, which profkit does not see: what "
    "is called hidden may be such a wait."
)


def exchange_sections(view: Overview) -> Iterator[Section]:
    if view.exchange is not None:
        yield by_rank(view, view.exchange.ranks)
    if view.links:
        yield by_link(view)


def by_rank(view: Overview, ranks: Sequence[RankExchange]) -> Section:
    """Return the exchange by rank: hidden, or exposed in its parts."""
    shown = sorted(ranks, key=lambda part: -part.exposed_ns)[:MOST_RANKS]
    rows = []
    for part in sorted(shown, key=lambda part: part.rank):
        row = (
            str(part.rank),
            duration(part.exposed_ns),
            known(part.waiting_ns, duration),
            known(part.transfer_ns, duration),
            duration(part.not_ready_ns),
            known(part.hidden_ns, duration),
        )
        rows.append(row)
    notes = []
    if len(ranks) > len(shown):
        left = plural(len(ranks) - len(shown), "more rank")
        notes.append(f"The {MOST_RANKS} ranks with the longest exposed time; {left} in --json.")
    if words := waiting_words(view):
        notes.append(words)
    if view.compiling is not None and any(part.hidden_ns for part in ranks):
        notes.append(COMPILED_WAITS)
    header = ("rank", "exposed", "waiting", "transfer", "not ready", "hidden")
    grid = Grid(header, tuple(rows), frozenset(range(1, len(header))))
    # Nothing in another tool's trace says which collectives carry gradients.
    imported = "imported_from" in view.config
    title = "Communication per step" if imported else "Exchange per step"
    return Section(title, tuple(notes), grid=grid)


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
    rows, links = [], view.links
    for use in links[:MOST_LINKS]:
        row = [
            use.op,
            name_group(use),
            significant(use.messages_per_step),
            byte_size(use.bytes_per_step),
            known(use.transfer_ns_per_step, duration),
        ]
        rates = (use.algorithm_bytes_per_s, use.bus_bytes_per_s, use.ceiling_bus_bytes_per_s)
        for rate in rates:
            row.append(known(rate, bytes_per_second))
        rows.append(tuple(row))
    notes = []
    if len(links) > MOST_LINKS:
        notes.append(f"The first {MOST_LINKS}; {len(links) - MOST_LINKS:,} more in --json.")
    recorded = view.ranks_seen
    if view.exchange:
        recorded = len(view.exchange.ranks)
    elif view.costs:
        recorded -= len(view.costs.unclocked)
    if recorded < view.world_size:
        notes.append(
            f"{plural(recorded, 'rank')} of {view.world_size:,} recorded them: "
            "transfer may include waiting for the others."
        )
    if any(use.transfer_ns_per_step is None for use in links):
        notes.append(
            "The ends of single messages were not recorded, so their transfer time is not known."
        )
    if any(not use.bytes_per_step for use in links):
        notes.append("Without a size, the transfer is the sum of all calls.")
    header = ("operation", "over", "messages", "bytes", "transfer", "algorithm", "bus", "alone")
    grid = Grid(header, tuple(rows), frozenset(range(2, len(header))))
    return Section("Collectives per step", tuple(notes), grid=grid)
