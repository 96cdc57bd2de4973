"""The bar of a step, and where a part of it leads to."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from profkit.analysis.views.run import RunView
from profkit.report.words import role_of
from profkit.text import duration
from profkit.tui.themes import PHASE_LETTERS, Palette
from profkit.tui.widgets.draw import Piece, line, stacked
from profkit.vocab import PHASES, Phase

SCREEN_OF = {
    Phase.DATA.value: "loader",
    Phase.ALLREDUCE.value: "ranks",
    Phase.FORWARD.value: "kernels",
    Phase.BACKWARD.value: "kernels",
    Phase.OPTIMIZER.value: "kernels",
}
"""The screen with details of a part; the timeline has those of all others."""


def phase_of(part: str) -> str | None:
    """Return the phase that a part of the ledger is about, if it is about one."""
    return part if part in PHASES else None


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
