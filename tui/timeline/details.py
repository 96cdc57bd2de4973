"""All that is known of one event, on top of the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from profkit.text import safe_text


class Details(ModalScreen[None]):
    """A line for each thing that is known."""

    CSS = """
    Details { align: center middle; }
    Details VerticalScroll { width: auto; max-width: 95%; height: auto; max-height: 95%; padding: 0 2; border: round $accent; background: $panel; }
    Details Static { width: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back", show=False)
    ]

    def __init__(self, lines: Mapping[str, str]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        width = max(map(len, self._lines), default=0)
        with VerticalScroll():
            yield Static(
                Text(
                    "\n".join(
                        f"{safe_text(name):>{width}}  {safe_text(value)}"
                        for name, value in self._lines.items()
                    )
                )
            )
