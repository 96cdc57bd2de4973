"""A widget that is lines of text, drawn anew for the room there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text
from textual.widgets import Static


class Lines(Static):
    """Shows what a function draws for a width."""

    DEFAULT_CSS = "Lines { width: 1fr; height: auto; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)
        self._draw: Callable[[int], Sequence[Text]] | None = None

    def show(self, draw: Callable[[int], Sequence[Text]]) -> None:
        self._draw = draw
        self.on_resize()

    def on_resize(self) -> None:
        if self._draw is not None and self.size.width:
            self.update(
                Text("\n").join(_cut(line, self.size.width) for line in self._draw(self.size.width))
            )


def _cut(line: Text, width: int) -> Text:
    """A line that may not be folded ends where the room does."""
    if line.no_wrap:
        line.truncate(width, overflow="ellipsis")
    return line
