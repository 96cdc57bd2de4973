"""Ranks and links as columns and lines: who waits for whom, and what the links carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from profkit.analysis.bandwidth import name_group
from profkit.analysis.views.ranks import RanksView, Wait
from profkit.report import ledger_text
from profkit.report.exchange_sections import late_words, say_late
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import Column, Columns
from profkit.tui.widgets.draw import Piece
from profkit.tui.widgets.readings import UNITS

MIN_DEVIATION: Final = 0.02
"""A phase that is this share of a step away from the median rank's is marked."""


class Cell(NamedTuple):
    """A phase of a rank: its time, by which it is sorted, and its text."""

    ns: float
    words: str


def summary_lines(view: RanksView, palette: Palette) -> Iterator[list[Piece]]:
    """Yield the number of ranks, and which rank the others wait for."""
    dim = palette.style("dim")
    hosts = len({row.host for row in view.ranks})
    ranks = f"{plural(len(view.ranks), 'rank')} on {plural(hosts, 'host')}"
    yield [(ranks, None), (f"   means over {plural(view.steps, 'step')}", dim)]
    if len(view.ranks) == 1 and view.waits is not None:
        yield [("one rank: no other rank to wait for", dim)]
    elif view.waits is None:
        yield [(f"who waits is inconclusive: {view.why_no_waits}", None)]
    elif not view.collectives:
        yield [("who waits is inconclusive: no collectives were recorded", None)]
    elif view.late_rank is not None:
        words = say_late(view.late_rank) + late_words(view.late_rank)
        yield [(words, palette.style("bad"))]
    elif view.most_deviating is not None:
        rank, phase, excess = view.most_deviating
        longer = f"{phase} of rank {rank}, {duration(excess)} longer"
        yield [(f"no rank stands out in the waiting; farthest from the median: {longer}", dim)]


def heat_columns(view: RanksView, *, deviations: bool, plain: bool) -> list[Column]:
    """Return ranks in rows and phases in columns, as times or as deviations from the median.

    Phases that deviate have a mark behind the figure, so that it does not depend on colour.
    """
    least_ns = MIN_DEVIATION * sum(view.median_ns.values())
    slow, fast = (" ^", " v") if plain else (" ▲", " ▼")
    table = Columns(view.ranks)
    table.figure("rank", lambda row: row.rank, searched=True)
    if len({row.host for row in view.ranks}) > 1:
        table.text("host", lambda row: row.host)
    table.figure("step", lambda row: row.wall_ns, duration, searched=True)
    for phase in view.phases:
        cells: list[Cell | None] = []
        roles: list[str] = []
        for row in view.ranks:
            ns, deviation_ns = row.phase_ns.get(phase), row.deviation_ns.get(phase)
            role, mark = "", "  "
            if ns is None or deviation_ns is None:
                cells.append(None)
            else:
                if deviation_ns > least_ns:
                    role, mark = "bad", slow
                elif deviation_ns < -least_ns:
                    role, mark = "good", fast
                words = ledger_text.signed(deviation_ns) if deviations else duration(ns)
                cells.append(Cell(ns, words + mark))
            roles.append(role)
        table.columns.append(
            Column(
                phase, cells, lambda cell: str(cell.words), right=True, roles=roles, searched=False
            )
        )
    return table.columns


def wait_columns(view: RanksView) -> list[Column]:
    """Return which rank waits for which, how long and how often."""
    table: Columns[Wait] = Columns(view.waits or ())
    table.figure("rank", lambda wait: wait.rank, searched=True)
    table.text("waits for", lambda wait: wait.late_rank, show="rank {}".format)
    table.figure("per step", lambda wait: wait.waiting_ns, duration)
    table.figure("exposed", lambda wait: wait.exposed_ns, duration)
    how_often = f"{{:,}} of {view.collectives:,}".format
    table.figure("how often", lambda wait: wait.collectives, how_often)
    return table.columns


def size_columns(view: RanksView) -> list[Column]:
    """Return the bus bandwidth of each collective and message size, next to its ceiling."""
    table = Columns(view.sizes)
    table.text("collective", lambda use: use.op)
    table.figure("message", lambda use: use.bytes, byte_size)
    table.figure("bus", lambda use: use.bus_bytes_per_s, UNITS["_bytes_per_s"])
    table.figure("ceiling", lambda use: use.ceiling_bus_bytes_per_s, UNITS["_bytes_per_s"])
    table.figure("of ceiling", lambda use: use.share_of_ceiling, lambda share: percent(share, 0))
    table.figure("transfer", lambda use: use.transfer_ns, duration)
    table.figure("per step", lambda use: use.messages_per_step, significant)
    table.text("over", name_group)
    return table.columns


def window_columns(view: RanksView) -> list[Column]:
    """Return the collectives that kernel windows show, with the fastest and slowest rank."""
    table = Columns(view.in_windows)
    table.text("kernel", lambda each: each.name, stretches=True)
    table.figure("calls", lambda each: each.calls, "{:,}".format)
    table.figure("per step", lambda each: each.ns_per_step, duration)
    table.figure("mean", lambda each: each.mean_ns, duration)
    table.text(
        "shortest",
        lambda each: f"{duration(each.shortest_rank_ns)} on rank {each.shortest_rank}",
        searched=False,
    )
    table.text(
        "longest",
        lambda each: f"{duration(each.longest_rank_ns)} on rank {each.longest_rank}",
        searched=False,
    )
    return table.columns
