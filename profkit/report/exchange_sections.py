"""The sections of a run with several ranks: gradient exchange by rank, and collectives by link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.bandwidth import LinkUse
from profkit.analysis.exchange import RankExchange
from profkit.analysis.overview import Overview
from profkit.report.document import Grid, Section
from profkit.text import byte_size, duration, percent, plural, significant

MOST_RANKS = 8
MOST_LINKS = 6


def exchange_sections(view: Overview) -> Iterator[Section]:
    if view.exchange is not None:
        yield _by_rank(view, view.exchange.ranks)
    if view.links:
        yield _by_link(view.links)


def _by_rank(view: Overview, ranks: Sequence[RankExchange]) -> Section:
    """Build the exchange by rank: hidden under backward or exposed, and the exposed part in detail."""
    shown = sorted(ranks, key=lambda part: -part.exposed_ns)[:MOST_RANKS]
    rows = []
    for part in sorted(shown, key=lambda part: part.rank):
        row = [str(part.rank)]
        for ns in (part.exposed_ns, part.waiting_ns, part.transfer_ns):
            row.append(_known_duration(ns))
        rows.append((*row, duration(part.not_ready_ns), duration(part.hidden_ns)))
    notes = []
    if len(ranks) > len(shown):
        left = plural(len(ranks) - len(shown), "more rank")
        notes.append(f"The {MOST_RANKS} ranks with the longest exposed time; {left} in --json.")
    if words := _waiting_words(view):
        notes.append(words)
    header = ("rank", "exposed", "waiting", "transfer", "not ready", "hidden")
    grid = Grid(header, tuple(rows), frozenset(range(1, len(header))))
    return Section("Gradient exchange per step", tuple(notes), grid=grid)


def _known_duration(ns: float | None) -> str:
    return "-" if ns is None else duration(ns)


def _waiting_words(view: Overview) -> str:
    """Name the rank that the others wait for, or say why nobody can be named."""
    exchange, late = view.exchange, view.late_rank
    if exchange and exchange.matched < exchange.collectives:
        missing = exchange.collectives - exchange.matched
        return (
            f"It is not known who waits: {missing:,} of {exchange.collectives:,} collectives "
            "were not seen on all ranks."
        )
    if not late:
        return ""
    words = (
        f"rank {late.rank} is late: the others wait {duration(late.waited_ns)} per step, "
        f"{percent(late.share, 0)} of it for this rank"
    )
    if late.excess_ns > 0:
        words += f"; its {late.phase} takes {duration(late.excess_ns)} longer than the others'"
    return words


def _by_link(links: tuple[LinkUse, ...]) -> Section:
    """Build what each communicator moves per step, how fast, and what its link reaches alone."""
    rows = []
    for use in links[:MOST_LINKS]:
        row = [
            use.op,
            f"{use.backend}, {plural(use.group_size, 'rank')}",
            significant(use.messages_per_step),
            byte_size(use.bytes_per_step),
            duration(use.transfer_ns_per_step),
        ]
        rates = (use.algorithm_bytes_per_s, use.bus_bytes_per_s, use.ceiling_bus_bytes_per_s)
        for rate in rates:
            row.append("-" if rate is None else f"{byte_size(rate)}/s")
        rows.append(tuple(row))
    notes = []
    if len(links) > MOST_LINKS:
        notes.append(f"The first {MOST_LINKS}; {len(links) - MOST_LINKS:,} more in --json.")
    header = ("operation", "over", "messages", "bytes", "transfer", "algorithm", "bus", "alone")
    grid = Grid(header, tuple(rows), frozenset(range(2, len(header))))
    return Section("Collectives per step", tuple(notes), grid=grid)
