"""The pictures of one run's overview: the bar of a step, the strip of steps, findings and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.style import Style
from rich.text import Text

from profkit.analysis.estimate import Estimate
from profkit.analysis.views.pictures import USED, StepPoint
from profkit.analysis.views.run import Loss, Part, RunView
from profkit.report import as_text
from profkit.text import duration, percent, plural, significant
from profkit.tui.themes import PHASE_LETTERS, Palette
from profkit.tui.widgets.draw import level, line, stacked
from profkit.vocab import Phase

_ROLE_OF = {"input": Phase.DATA.value, "rest": Phase.OTHER.value}
"""The parts of the ledger that have another name than the phase whose colour they wear."""

_EVIDENCE = {
    "input": "loader",
    Phase.ALLREDUCE.value: "ranks",
    Phase.FORWARD.value: "kernels",
    Phase.BACKWARD.value: "kernels",
    Phase.OPTIMIZER.value: "kernels",
}

NO_MARK = " "
_TALL = 4
_FEWEST_ROWS_FOR_TALL = 30


def role_of(part: str) -> str:
    return _ROLE_OF.get(part, part)


def screen_of(part: str) -> str:
    """The screen that says more of a part; of what has none of its own it is the timeline."""
    return _EVIDENCE.get(part, "timeline")


def letter_of(part: str) -> str:
    return PHASE_LETTERS.get(role_of(part), "?")


def headline(view: RunView, palette: Palette) -> list[Text]:
    """What ran, how fast, and over which steps that was measured."""
    run = view.overview
    config = run.config
    what = [
        run.workload,
        run.framework,
        str(config.get("precision", "")),
        plural(run.world_size, "rank"),
        str(config.get("device", "")),
    ]
    if "batch_size" in config:
        what.append(f"batch {config['batch_size']} a rank")
    speed = (
        f"{significant(run.throughput.value, 4)} samples/s"
        if run.samples_known
        else "samples are not known"
    )
    figures = [
        (f"{speed}  ", palette.style("title")),
        (f"{interval_of(run.throughput)}    ", palette.style("dim")),
        (f"step {duration(run.step_ns.value, 4)}  ", palette.style("title")),
        (interval_of(run.step_ns, duration), palette.style("dim")),
    ]
    lines = [line([(" · ".join(part for part in what if part), Style.null())]), line(figures)]
    if not run.judged:
        lines.append(
            line([(f"cannot judge: {as_text.why_not_judged(run)}", palette.style("unsure"))])
        )
    return lines


def interval_of(found: Estimate, show: Callable[[float], str] = as_text.plain) -> str:
    return (
        "no interval"
        if found.low is None or found.high is None
        else f"{show(found.low)} to {show(found.high)}"
    )


def bar_of_step(view: RunView, palette: Palette, width: int, *, plain: bool) -> list[Text]:
    """The parts of a step side by side: in all as long as the step. Names and letters tell them apart without colours."""
    shares = [(part.name, part.step_ns.value) for part in view.parts]
    bar = Text(no_wrap=True, end="")
    for name, cells in stacked(shares, width):
        label = name if len(name) + 2 <= cells else letter_of(name)
        bar.append(
            letter_of(name) * cells if plain else label[:cells].center(cells),
            palette.style(role_of(name)) + Style(reverse=True),
        )
    legend = [(f"a step is {duration(view.wall_ns, 4)}; ", palette.style("dim"))]
    for name, cells in stacked(shares, width):
        if plain or len(name) + 2 > cells:
            legend += [
                (letter_of(name), palette.style(role_of(name)) + Style(reverse=True)),
                (f" {name}  ", Style.null()),
            ]
    return [bar, line(legend)]


def strip(
    points: Sequence[StepPoint], palette: Palette, width: int, height: int, *, plain: bool
) -> list[Text]:
    """The time of each step over the run: the longest of each cell, and below it what kind of step stands apart."""
    if not points:
        return []
    rows = _TALL if height >= _FEWEST_ROWS_FOR_TALL else 1
    cells = _cells(points, width)
    used = [point.high_ns for point in points if point.kind == USED] or [
        point.high_ns for point in points
    ]
    top = min(max(point.high_ns for point in points), 3 * sorted(used)[len(used) // 2])
    picture = [_row(cells, top, row, rows, palette, plain=plain) for row in reversed(range(rows))]
    kinds = list(dict.fromkeys(point.kind for point in points if point.kind != USED))
    marks = {kind: _mark(kind, kinds) for kind in kinds}
    below = line([(marks.get(_kind(cell), NO_MARK), palette.style("unsure")) for cell in cells])
    first, last = points[0].step, points[-1].step + points[-1].count - 1
    words = f"steps {first:,} to {last:,}, up to {duration(top)}" + "".join(
        f"   {mark} {kind}" for kind, mark in marks.items()
    )
    return [*picture, below, line([(words, palette.style("dim"))])]


def _cells(points: Sequence[StepPoint], width: int) -> list[Sequence[StepPoint]]:
    """The points of each cell; where there are fewer points than cells, each has some cells."""
    count = max(1, min(width, len(points)))
    each = [
        points[place * len(points) // count : (place + 1) * len(points) // count]
        for place in range(count)
    ]
    wide = max(1, width // count) if count < width else 1
    return [cell for cell in each for _ in range(min(wide, 3))]


def _kind(cell: Sequence[StepPoint]) -> str:
    return next((point.kind for point in cell if point.kind != USED), USED)


def _mark(kind: str, kinds: Sequence[str]) -> str:
    """The first letter of a kind that no kind before it has."""
    taken = [_mark(each, kinds) for each in kinds[: kinds.index(kind)]]
    return next((char for char in kind if char.isalpha() and char not in taken), "*")


def _row(
    cells: Sequence[Sequence[StepPoint]],
    top: float,
    row: int,
    rows: int,
    palette: Palette,
    *,
    plain: bool,
) -> Text:
    step = top / rows
    text = Text(no_wrap=True, end="")
    for cell in cells:
        value = max(point.high_ns for point in cell)
        if value <= row * step:
            text.append(" ")
            continue
        style = palette.style("unsure" if _kind(cell) != USED else "forward")
        text.append(
            "^"
            if value > top and row == rows - 1
            else level(min(value, (row + 1) * step), row * step, (row + 1) * step, plain=plain),
            style,
        )
    return text


def findings(losses: Sequence[Loss], palette: Palette) -> Iterator[Text]:
    """Each finding with what it costs and its evidence, the costliest first."""
    if not losses:
        yield line(
            [
                (
                    "nothing stands out: no part in which nothing is trained takes more than next to nothing",
                    palette.style("good"),
                )
            ]
        )
    for number, loss in enumerate(losses, start=1):
        cost = f"{duration(loss.step_ns.value)} a step, {percent(loss.share)}"
        yield line(
            [
                (f"{number} {loss.kind}: ", palette.style("bad")),
                (f"{cost}  ", palette.style("title")),
                (loss.evidence, palette.style("dim")),
            ]
        )


def words(view: RunView, palette: Palette) -> list[Text]:
    """What to know before believing the figures, and what measuring them cost."""
    run = view.overview
    rows = [
        ("steps", as_text.steps_line(run).removeprefix("steps").strip()),
        ("profkit's cost", as_text.own_cost_words(run)),
    ]
    if run.first_loss is not None and run.last_loss is not None:
        rows.append(
            (
                "loss",
                f"{significant(run.first_loss, 5)} at the first step, {significant(run.last_loss, 5)} at the last",
            )
        )
    rows.append(("data quality", "; ".join(run.quality) or "complete, no rows dropped"))
    rows += [("flag", flag) for flag in run.flags]
    if reduced := run.config.get("reduced"):
        rows.append(("reduced", str(reduced)))
    alarm = run.own_cost.exceeds_budget(run.step_ns.value)
    return [
        _word(label, text, palette, bad=label == "profkit's cost" and alarm) for label, text in rows
    ]


def _word(label: str, text: str, palette: Palette, *, bad: bool) -> Text:
    found = line(
        [(f"{label:<15}", palette.style("dim")), (text, palette.style("bad") if bad else None)]
    )
    found.no_wrap, found.overflow = False, "fold"
    return found


def part_rows(view: RunView) -> list[tuple[str, Part, bool]]:
    """The rows of the table: each part, what is inside it, and at the end what is hidden. True where it is in no sum."""
    rows: list[tuple[str, Part, bool]] = []
    for part in view.parts:
        rows.append((part.name, part, False))
        rows += [(f"  {each.name}", each, False) for each in part.inside]
    return rows + [(f"hidden: {part.name}", part, True) for part in view.hidden]


def interval(part: Part) -> str:
    low, high = part.share.low, part.share.high
    return (
        "-"
        if low is None or high is None
        else f"{percent(low).removesuffix(' %')} to {percent(high)}"
    )


def share_of(part: Part) -> float:
    return part.share.value if math.isfinite(part.share.value) else math.nan
