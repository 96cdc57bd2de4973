"""A widget of lines of text that are drawn again for each width."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.text import Text
from textual.widgets import Static


class Lines(Static):
    """Shows the lines that a function draws for a width."""

    DEFAULT_CSS = "Lines { width: 1fr; height: auto; }"

    _draw: Callable[[int], Iterable[Text]] | None = None

    def show(self, draw: Callable[[int], Iterable[Text]]) -> None:
        """Show the lines of a function, which is called again for another width."""
        self._draw = draw
        self.on_resize()

    def on_resize(self) -> None:
        width = self.size.width
        if self._draw is None or not width:
            return
        lines = list(self._draw(width))
        for line in lines:
            if line.no_wrap:
                line.truncate(width, overflow="ellipsis")
        self.update(Text("\n").join(lines))
