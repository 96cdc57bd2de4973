"""Small windows above a screen: a choice, a list of facts, and the line for typed text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from profkit.text import safe_text


class Window(ModalScreen[str]):
    """Lines of text in a frame above a screen."""

    CSS = """
    Window { align: center middle; }
    Window VerticalScroll { width: auto; max-width: 95%; height: auto; max-height: 95%;
        padding: 0 2; border: round $accent; background: $panel; }
    Window Static { width: auto; }
    """

    _lines: Sequence[str] = ()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text("\n".join(self._lines)))


class Choose(Window):
    """Asks the user to choose one of a few options; each has a key of its own."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "back", show=False)]

    def __init__(self, question: str, options: Mapping[str, str]) -> None:
        super().__init__()
        self._options = options
        labels = [f" {key}  {safe_text(label)}" for key, label in options.items()]
        self._lines = (question, "", *labels, "", "Esc: cancel")

    def on_key(self, event: events.Key) -> None:
        if event.character in self._options:
            event.stop()
            self.dismiss(event.character)


class Facts(Window):
    """Shows names and values, a line each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back", show=False)
    ]

    def __init__(self, facts: Mapping[str, str], heading: Iterable[str] = ()) -> None:
        super().__init__()
        width = max(map(len, facts), default=0)
        self._lines = [*heading]
        for name, value in facts.items():
            if value:
                self._lines.append(f"{safe_text(name):>{width}}  {safe_text(value)}")
            else:
                self._lines += ["", safe_text(name)]


class Help(Facts):
    """Shows the keys of the screen below it, and what they do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "dismiss", "back", show=False)
    ]


class Prompt(Input):
    """A line above the keys for typed text; Esc leaves it."""

    DEFAULT_CSS = """
    Prompt { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    Prompt:focus { border: none; }
    """
