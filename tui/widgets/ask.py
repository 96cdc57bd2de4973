"""Small questions above a screen: which of a few, and a line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from profkit.text import safe_text


class Choose(ModalScreen[str]):
    """Asks which of a few; each has a key of its own."""

    CSS = """
    Choose { align: center middle; }
    Choose VerticalScroll { width: auto; max-width: 90%; height: auto; max-height: 90%; padding: 0 2; border: round $accent; background: $panel; }
    Choose Static { width: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "back", show=False)]

    def __init__(self, question: str, options: Mapping[str, str]) -> None:
        super().__init__()
        self._question = question
        self._options = options

    def compose(self) -> ComposeResult:
        lines = [
            self._question,
            "",
            *(f" {key}  {safe_text(label)}" for key, label in self._options.items()),
            "",
            "Esc: leave it",
        ]
        with VerticalScroll():
            yield Static(Text("\n".join(lines)))

    def on_key(self, event: events.Key) -> None:
        if event.character in self._options:
            event.stop()
            self.dismiss(event.character)


class Help(ModalScreen[None]):
    """The keys of the screen below it."""

    CSS = """
    Help { align: center middle; }
    Help VerticalScroll { width: auto; max-width: 95%; height: auto; max-height: 95%; padding: 0 2; border: round $accent; background: $panel; }
    Help Static { width: auto; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,enter", "dismiss", "back", show=False)
    ]

    def __init__(self, title: str, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._title = title
        self._keys = keys

    def compose(self) -> ComposeResult:
        width = max(map(len, self._keys), default=0)
        lines = [
            f"{self._title}: its keys",
            "",
            *(f"{keys:>{width}}  {meaning}" for keys, meaning in self._keys.items()),
        ]
        with VerticalScroll():
            yield Static(Text("\n".join(lines)))


class Prompt(Input):
    """A line above the keys in which something is typed; Esc leaves it."""

    DEFAULT_CSS = """
    Prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    Prompt:focus { border: none; }
    """
