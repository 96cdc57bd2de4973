"""Ranks and links as columns and lines: who waits for whom, and what the links carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from profkit.analysis.bandwidth import name_group
from profkit.analysis.views.ranks import RanksView
from profkit.report.exchange_sections import late_words, say_late
from profkit.show.document import Column, Table, data_columns
from profkit.show.figures import BYTES, BYTES_PER_S, COUNT, NS, NUMBER, WHOLE_SHARE, Unit
from profkit.text import duration, plural, signed
from profkit.tui.themes import Palette
from profkit.tui.widgets.columns import Column as Shown
from profkit.tui.widgets.document import columns_of
from profkit.tui.widgets.draw import Piece

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


def heat_columns(view: RanksView, *, deviations: bool, plain: bool) -> list[Shown]:
    """Return ranks in rows and phases in columns, as times or as deviations from the median.

    Phases that deviate have a mark behind the figure, so that it does not depend on colour.
    """
    least_ns = MIN_DEVIATION * sum(view.median_ns.values())
    slow, fast = (" ^", " v") if plain else (" ▲", " ▼")
    several = len({row.host for row in view.ranks}) > 1
    first = (
        Column("", "rank", lambda row: row.rank, COUNT),
        Column("", "host" if several else None, lambda row: row.host),
        Column("", "step", lambda row: row.wall_ns, NS),
    )
    columns = columns_of(Table(first, view.ranks))
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
                words = signed(deviation_ns) if deviations else duration(ns)
                cells.append(Cell(ns, words + mark))
            roles.append(role)
        columns.append(
            Shown(
                phase, cells, lambda cell: str(cell.words), right=True, roles=roles, searched=False
            )
        )
    return columns


def wait_table(view: RanksView) -> Table:
    """Return which rank waits for which, how long and how often."""
    how_often = Unit(f"{{:,}} of {view.collectives:,}".format)
    columns = (
        Column("", "rank", lambda wait: wait.rank, COUNT),
        Column("", "waits for", lambda wait: f"rank {wait.late_rank}"),
        Column("", "per step", lambda wait: wait.waiting_ns, NS),
        Column("", "exposed", lambda wait: wait.exposed_ns, NS),
        Column("", "how often", lambda wait: wait.collectives, how_often),
    )
    return Table(columns, view.waits or ())


SIZES: Final = (
    Column("op", "collective", lambda use: use.op),
    Column("bytes", "message", lambda use: use.bytes, BYTES),
    Column("bus_bytes_per_s", "bus", lambda use: use.bus_bytes_per_s, BYTES_PER_S),
    Column(
        "ceiling_bus_bytes_per_s", "ceiling", lambda use: use.ceiling_bus_bytes_per_s, BYTES_PER_S
    ),
    Column("share_of_ceiling", "of ceiling", lambda use: use.share_of_ceiling, WHOLE_SHARE),
    Column("transfer_ns", "transfer", lambda use: use.transfer_ns, NS),
    Column("messages_per_step", "per step", lambda use: use.messages_per_step, NUMBER),
    Column("", "over", name_group),
    *data_columns("communicator", "backend", "group_size"),
)
"""The bus bandwidth of each collective and message size, next to its ceiling."""


def _on_rank(ns: str, rank: str) -> Callable[[Any], str]:
    return lambda each: f"{duration(getattr(each, ns))} on rank {getattr(each, rank)}"


WINDOWS: Final = (
    Column("", "kernel", lambda each: each.name, stretches=True),
    Column("", "calls", lambda each: each.calls, COUNT),
    Column("", "per step", lambda each: each.ns_per_step, NS),
    Column("", "mean", lambda each: each.mean_ns, NS),
    Column("", "shortest", _on_rank("shortest_rank_ns", "shortest_rank")),
    Column("", "longest", _on_rank("longest_rank_ns", "longest_rank")),
)
"""The collectives that kernel windows show, with the fastest and slowest rank."""
