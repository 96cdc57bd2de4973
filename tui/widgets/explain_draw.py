"""The comparison of runs as columns and lines: how a job scales, the way from one total to the other, and its causes."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.style import Style
from rich.text import Text

from profkit.analysis.config_join import Difference
from profkit.explain.explained import Explained
from profkit.explain.kernel_ledger import KernelRow
from profkit.explain.ledger import Ledger, Verdict
from profkit.explain.scaling import FACTORS, ScalingRow
from profkit.explain.waterfall import Drop
from profkit.report import ledger_text
from profkit.text import amount, duration, significant
from profkit.tui.themes import Palette
from profkit.tui.widgets.draw import line
from profkit.tui.widgets.run_draw import role_of
from profkit.tui.widgets.table import Column

_ROLES: Final = {
    Verdict.REGRESSION: "bad",
    Verdict.IMPROVEMENT: "good",
    Verdict.NEUTRAL: "dim",
    Verdict.CANNOT_JUDGE: "unsure",
}


def scaling_columns(rows: Sequence[ScalingRow]) -> Iterator[Column]:
    """The runs side by side; each one's factors multiply out to its efficiency."""
    yield Column(
        "run", [row.name for row in rows], stretches=True, role=lambda _: "title", widest=40
    )
    yield Column("ranks", [row.gpus for row in rows], right=True)
    yield Column(
        "throughput",
        [row.throughput.value for row in rows],
        functools.partial(significant, digits=4),
        right=True,
    )
    yield Column("speed-up", [row.speed_up.value for row in rows], significant, right=True)
    yield Column("efficiency", [row.efficiency.value for row in rows], significant, right=True)
    for name in FACTORS:
        yield Column(
            name.removeprefix("exposed "),
            [row.factors[name].value for row in rows],
            significant,
            right=True,
        )


def scaling_lines(row: ScalingRow, palette: Palette) -> Iterator[Text]:
    """What holds a run back, and for whom its ranks wait."""
    yield _folded(
        line(
            [
                (f"{row.name}: ", palette.style("title")),
                (ledger_text.scaling_words(row), Style.null()),
            ]
        )
    )
    if not row.waiting_known:
        yield _folded(
            line(
                [
                    (
                        "  waiting for late ranks could not be told from transfer, and is communication",
                        palette.style("unsure"),
                    )
                ]
            )
        )
    for words in ledger_text.meeting_words(row.meeting):
        yield _folded(line([(f"  {words}", palette.style("dim"))]))


def verdict_lines(view: Explained, palette: Palette) -> Iterator[Text]:
    ledger, case = view.ledger, view.case
    sides = (
        ("base  ", case.base_name, ledger.total.base, case.base),
        ("target", case.target_name, ledger.total.target, case.target),
    )
    for side, name, own, manifest in sides:
        pace = ledger_text.pace(ledger, own, manifest.world_size)
        yield line(
            [
                (f"{side}  ", palette.style("dim")),
                (f"{name}  ", palette.style("title")),
                (pace, Style.null()),
            ]
        )
    words = [
        (f"{ledger.verdict.value}: ", palette.style(_ROLES[ledger.verdict]) + Style(bold=True)),
        (ledger_text.verdict_words(ledger), Style.null()),
    ]
    yield _folded(line(words))
    for caveat in view.caveats:
        yield _folded(line([("mind: ", palette.style("unsure")), (caveat, Style.null())]))


def cause_lines(view: Explained, palette: Palette) -> Iterator[Text]:
    if not view.findings:
        yield line([("no cause stands out of the noise", palette.style("dim"))])
    for number, found in enumerate(view.findings, start=1):
        yield _folded(
            line(
                [
                    (f"{number} {found.kind}: ", palette.style("bad")),
                    (ledger_text.finding_cost(found), palette.style("title")),
                ]
            )
        )
        yield _folded(line([(f"  {found.evidence}", palette.style("dim"))]))
        if found.remedy:
            yield _folded(line([("  try: ", palette.style("good")), (found.remedy, Style.null())]))


def _folded(text: Text) -> Text:
    text.no_wrap, text.overflow = False, "fold"
    return text


def waterfall_columns(
    ledger: Ledger, drops: Sequence[Drop], width: int, *, plain: bool
) -> Iterator[Column]:
    """Each row of the ledger with both sides, and a fall of so many cells that begins where the row above ended."""
    factor = ledger.samples_per_step
    low, high = _span(drops)
    names = [_name(drop) for drop in drops]
    cells = [
        ledger_text.row_cells(ledger, drop.row, name, factor)
        for drop, name in zip(drops, names, strict=True)
    ]
    yield Column("where the time goes", names, stretches=True, role=_name_role, widest=34)
    yield Column(
        "base",
        _unless("target", drops, [drop.row.base.value * factor for drop in drops]),
        duration,
        right=True,
    )
    yield Column(
        "target",
        _unless("base", drops, [drop.row.target.value * factor for drop in drops]),
        duration,
        right=True,
    )
    yield Column(
        "difference",
        _unless("base", drops, [drop.row.delta.value * factor for drop in drops]),
        ledger_text.signed,
        right=True,
    )
    yield Column(
        "",
        drops,
        functools.partial(_fall, low=low, high=high, width=width, plain=plain),
        searched=False,
        role=_fall_role,
        widest=width,
    )
    yield Column(
        "verdict",
        _unless("base", drops, [cell[-1] for cell in cells]),
        role=lambda word: _ROLES[Verdict(word)] if word else "dim",
    )
    yield Column("95 % interval", _unless("base", drops, [cell[-2] for cell in cells]))


def kernel_columns(rows: Sequence[KernelRow]) -> Iterator[Column]:
    """Kernels, or operators, of the captured steps of both runs side by side."""
    yield Column("name", [row.name for row in rows], stretches=True, widest=48)
    yield Column("phase", [row.phase for row in rows], role=role_of)
    yield Column("base", [row.base_ns for row in rows], duration, right=True)
    yield Column("target", [row.target_ns for row in rows], duration, right=True)
    yield Column("difference", [row.delta_ns for row in rows], ledger_text.signed, right=True)
    yield Column("calls before", [row.base_calls for row in rows], _calls, right=True)
    yield Column("calls", [row.target_calls for row in rows], _calls, right=True)
    yield Column("category", [row.category for row in rows])


def difference_columns(found: Sequence[Difference]) -> Iterator[Column]:
    """What else differs between two runs, and which rows that can affect."""
    yield Column("name", [each.name for each in found], stretches=True)
    yield Column("base", [each.base for each in found], widest=24)
    yield Column("target", [each.target for each in found], widest=24)
    yield Column("can affect", [each.rows for each in found], widest=40)


def _unless(kind: str, drops: Sequence[Drop], values: Sequence[Any]) -> list[Any]:
    """The values, without that of the total at one end: there the other side has none."""
    return [None if drop.kind == kind else value for drop, value in zip(drops, values, strict=True)]


def _calls(count: float) -> str:
    return amount(count)


def _name(drop: Drop) -> str:
    return {
        "base": "base, in all",
        "target": "target, in all",
        "overlapped": f"(overlapped) {drop.name}",
    }.get(drop.kind, "  " * drop.depth + drop.name)


def _name_role(name: str) -> str:
    if name.endswith(", in all"):
        return "title"
    return "dim" if name.startswith(("(", " ")) else role_of(name)


def _span(drops: Sequence[Drop]) -> tuple[float, float]:
    """What the falls are drawn in: from a little below the lowest to the highest place that they reach."""
    places = [
        place for drop in drops if drop.kind == "row" for place in (drop.start_ns, drop.end_ns)
    ]
    places += [drop.end_ns for drop in drops if drop.kind in {"base", "target"}]
    finite = [place for place in places if math.isfinite(place)] or [0.0]
    margin = (max(finite) - min(finite)) / 8
    return max(0.0, min(finite) - margin) if min(finite) >= 0 else min(finite) - margin, max(finite)


def _fall(drop: Drop, *, low: float, high: float, width: int, plain: bool) -> str:
    """From where a row begins to where it ends: what is added is solid, what is saved is hatched."""
    if (
        drop.kind == "overlapped"
        or not high > low
        or not (math.isfinite(drop.start_ns) and math.isfinite(drop.end_ns))
    ):
        return ""
    start = low if drop.kind in {"base", "target"} else drop.start_ns
    left, right = (
        round((place - low) / (high - low) * width) for place in sorted((start, drop.end_ns))
    )
    if left == right:
        return " " * min(left, width - 1) + ("|" if plain else "▏")
    more, less, whole = ("+", "-", "=") if plain else ("█", "▒", "━")
    mark = (
        whole if drop.kind in {"base", "target"} else more if drop.end_ns > drop.start_ns else less
    )
    return " " * left + mark * (right - left)


def _fall_role(drop: Drop) -> str:
    if drop.kind != "row":
        return "dim"
    return "bad" if drop.end_ns > drop.start_ns else "good"
