"""Small windows above a screen: a choice, a list of facts, and the line for typed text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from profkit.text import safe_text

_WINDOW_CSS = """
NAME { align: center middle; }
NAME VerticalScroll { width: auto; max-width: 95%; height: auto; max-height: 95%; padding: 0 2;
    border: round $accent; background: $panel; }
NAME Static { width: auto; }
"""


class Choose(ModalScreen[str]):
    """Asks the user to choose one of a few options; each has a key of its own."""

    CSS = _WINDOW_CSS.replace("NAME", "Choose")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "back", show=False)]

    def __init__(self, question: str, options: Mapping[str, str]) -> None:
        super().__init__()
        self._question = question
        self._options = options

    def compose(self) -> ComposeResult:
        options = [f" {key}  {safe_text(label)}" for key, label in self._options.items()]
        with VerticalScroll():
            yield Static(Text("\n".join([self._question, "", *options, "", "Esc: cancel"])))

    def on_key(self, event: events.Key) -> None:
        if event.character in self._options:
            event.stop()
            self.dismiss(event.character)


class Facts(ModalScreen[None]):
    """Shows names and values, a line each."""

    CSS = _WINDOW_CSS.replace("NAME", "Facts")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back", show=False)
    ]

    def __init__(self, facts: Mapping[str, str], heading: Iterable[str] = ()) -> None:
        super().__init__()
        self._facts = facts
        self._heading = heading

    def compose(self) -> ComposeResult:
        width = max(map(len, self._facts), default=0)
        lines = list(self._heading)
        for name, value in self._facts.items():
            lines.append(f"{safe_text(name):>{width}}  {safe_text(value)}")
        with VerticalScroll():
            yield Static(Text("\n".join(lines)))


class Help(Facts):
    """Shows the keys of the screen below it, and what they do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "dismiss", "back", show=False)
    ]

    def __init__(self, title: str, keys: Mapping[str, str]) -> None:
        super().__init__(keys, (f"Keys of {title}", ""))


class Prompt(Input):
    """A line above the keys for typed text; Esc leaves it."""

    DEFAULT_CSS = """
    Prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    Prompt:focus { border: none; }
    """
