"""The overview of one run as lines: headline, bar of a step, losses and data quality."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from profkit.analysis.change_words import say_change
from profkit.analysis.estimate import Estimate
from profkit.analysis.views.run import Part, RunView
from profkit.report import as_text
from profkit.report.compiling_section import compiled_line
from profkit.report.log_words import coverage, log_quality, sample_unit
from profkit.report.words import interval_range, share_range
from profkit.text import duration, percent, significant
from profkit.trace.sharing import say_world
from profkit.tui.themes import PHASE_LETTERS, Palette
from profkit.tui.widgets.columns import Column, Columns
from profkit.tui.widgets.draw import Piece, bar, folded, line, stacked
from profkit.vocab import PHASES, Phase

_ROLE_OF = {"input": Phase.DATA.value, "rest": Phase.OTHER.value}
"""The role of ledger parts whose name is not that of a phase."""

SCREEN_OF = {
    "input": "loader",
    Phase.ALLREDUCE.value: "ranks",
    Phase.FORWARD.value: "kernels",
    Phase.BACKWARD.value: "kernels",
    Phase.OPTIMIZER.value: "kernels",
}
"""The screen with details of a part; the timeline has those of all others."""

BAR_WIDTH = 16

MOST_CHANGES = 3
"""Changes of the step time that the screen shows; `profkit report` has more."""


class PartKey(NamedTuple):
    """Identifies a row of the table of parts."""

    label: str
    parent: str
    """The part that the row is about or is inside of; empty for time that is hidden."""


def role_of(part: str) -> str:
    """Return the role of a part: that of its phase."""
    return _ROLE_OF.get(part, part)


def phase_of(part: str) -> str | None:
    """Return the phase that a part of the ledger is about, if it is about one."""
    if part == "input":
        return Phase.DATA.value
    return part if part in PHASES else None


def headline(view: RunView, palette: Palette) -> Iterator[Text]:
    """Yield what ran, how fast, and why the speed is inconclusive if it is."""
    run = view.overview
    config = run.config
    words = [
        run.workload,
        run.framework,
        str(config.get("precision", "")),
        say_world(run.world_size, config),
        str(config.get("device", "")),
    ]
    if "batch_size" in config:
        words.append(f"batch {config['batch_size']} per rank")
    yield line([(" · ".join(filter(None, words)), None)])
    title, dim = palette.style("title"), palette.style("dim")
    speed = "number of samples not known"
    if run.samples_known:
        speed = f"{significant(run.throughput.value, 4)} {sample_unit(config)}/s"
    covered = ", ".join(filter(None, (interval_of(run.throughput), coverage(run))))
    yield line(
        [
            (f"{speed}  ", title),
            (f"{covered}    ", dim),
            (f"step {duration(run.step_ns.value, 4)}  ", title),
            (interval_of(run.step_ns, duration), dim),
        ]
    )
    if not run.judged:
        why = f"inconclusive: {as_text.why_not_judged(run)}"
        yield line([(why, palette.style("unsure"))])


def interval_of(
    found: Estimate, show: Callable[..., str] = as_text.plain, missing: str = "no interval"
) -> str:
    """Return the 95 % interval of an estimate as text, or `missing` if there is none."""
    return interval_range(found, show) if found.judged else missing


def bar_of_step(view: RunView, palette: Palette, width: int, *, plain: bool) -> list[Text]:
    """Return the parts of a step side by side, and a legend of those without room for a name."""
    shares = [(part.name, part.step_ns.value) for part in view.parts]
    picture = Text(no_wrap=True, end="")
    legend: list[Piece] = [(f"a step takes {duration(view.wall_ns, 4)}; ", palette.style("dim"))]
    for name, cells in stacked(shares, width):
        letter = PHASE_LETTERS.get(role_of(name), "?")
        style = palette.style(role_of(name)) + Style(reverse=True)
        has_room = len(name) + 2 <= cells
        if plain:
            picture.append(letter * cells, style)
        elif has_room:
            picture.append(name.center(cells), style)
        else:
            picture.append(letter[:cells].center(cells), style)
        if plain or not has_room:
            legend += [(letter, style), (f" {name}  ", None)]
    return [picture, line(legend)]


def loss_lines(view: RunView, palette: Palette) -> Iterator[Text]:
    """Yield each loss with its cost and its evidence, the costliest first."""
    if not view.losses and not view.losses_missing:
        words = "none found: nothing else takes a significant share of a step"
        yield line([(words, palette.style("good"))])
    for number, loss in enumerate(view.losses, start=1):
        cost = f"{duration(loss.step_ns.value)} per step, {percent(loss.share)}"
        yield folded(
            (f"{number} {loss.kind}: ", palette.style("bad")),
            (f"{cost}  ", palette.style("title")),
            (loss.evidence, palette.style("dim")),
        )
    if view.losses_missing:
        begin = "there may be more" if view.losses else "not known"
        yield folded((f"{begin}: {view.losses_missing}", palette.style("unsure")))


def quality_lines(view: RunView, palette: Palette) -> Iterator[Text]:
    """Yield what limits confidence in the figures, and the overhead of measuring them."""
    run = view.overview
    rows = [
        ("steps", as_text.steps_line(run).removeprefix("steps").strip()),
        ("overhead", as_text.own_cost_words(run)),
    ]
    if run.first_loss is not None and run.last_loss is not None:
        first, last = significant(run.first_loss, 5), significant(run.last_loss, 5)
        rows.append(("loss", f"{first} at the first step, {last} at the last"))
    for change in run.changes[:MOST_CHANGES]:
        rows.append(("change", say_change(change)))
    if run.compiling is not None:
        rows.append(("compiling", compiled_line(run)))
    quality = "; ".join([*run.quality, *log_quality(run)])
    rows.append(("data quality", quality or "complete, no rows dropped"))
    for flag in run.flags:
        rows.append(("flag", flag))
    if run.config.get("reduced"):
        rows.append(("reduced", str(run.config["reduced"])))
    for label, words in rows:
        style = None
        if label == "overhead" and run.own_cost.exceeds_budget(run.step_ns.value):
            style = palette.style("bad")
        yield folded((f"{label:<15}", palette.style("dim")), (words, style))


def part_columns(view: RunView, *, plain: bool) -> tuple[list[Column], list[PartKey]]:
    """Return the columns of the table of parts, and the key of each row.

    The rows are the parts, each with what is inside it, and then hidden time.
    """
    rows: list[tuple[PartKey, Part, str]] = []
    for part in view.parts:
        rows.append((PartKey(part.name, part.name), part, role_of(part.name)))
        for inner in part.inside:
            rows.append((PartKey(f"  {inner.name}", part.name), inner, "dim"))
    for part in view.hidden:
        rows.append((PartKey(f"hidden: {part.name}", ""), part, "dim"))
    keys: list[PartKey] = []
    roles: list[str] = []
    shares: list[float] = []
    intervals: list[str] = []
    for key, part, role in rows:
        share = part.share
        keys.append(key)
        roles.append(role)
        shares.append(share.value if math.isfinite(share.value) else math.nan)
        intervals.append(share_range(share))
    table = Columns(rows)
    labels = [key.label for key in keys]
    table.columns.append(Column("part", labels, stretches=True, roles=roles))
    table.figure("per step", lambda row: row[1].step_ns.value, duration, searched=True)
    if any(part.host_ns is not None for _, part, _ in rows):
        table.figure("host", lambda row: row[1].host_ns, duration)
    table.columns.append(Column("share", shares, percent, right=True))
    table.columns.append(Column("95 % interval", intervals))
    draw_bar = functools.partial(bar, width=BAR_WIDTH, plain=plain)
    table.columns.append(Column("", shares, draw_bar, searched=False))
    return table.columns, keys
