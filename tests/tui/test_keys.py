"""Every key that a screen binds is in docs/tui.md, and the help names the screens that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from textual.binding import Binding

from profkit.commands import tui as verb
from profkit.tui.app import ProfkitApp, load_screens
from profkit.tui.screens.kernels import CallsScreen
from profkit.tui.screens.runs import RunsScreen
from profkit.tui.widgets.table import VirtualTable

PAGE = (Path(__file__).parents[2] / "docs" / "tui.md").read_text(encoding="utf-8")
NAMES = {
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "full_stop": ".",
    "comma": ",",
    "slash": "/",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "greater_than_sign": ">",
    "less_than_sign": "<",
    "escape": "Esc",
    "f1": "F1",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "shift+left": "Shift+Left",
    "shift+right": "Shift+Right",
}
"""The name of a key on the page, if it is not the character or the capitalised name."""

SCREENS: dict[str, type[Any]] = {
    "Runs": RunsScreen,
    "Calls": CallsScreen,
    **{kind.TITLE: kind for kind in load_screens().values()},
}


def _bound(kinds: Iterable[type]) -> set[str]:
    """Return the keys that classes bind themselves, by their names on the page."""
    names: set[str] = set()
    for kind in kinds:
        for binding in vars(kind).get("BINDINGS", ()):
            assert isinstance(binding, Binding)
            for key in binding.key.split(","):
                is_word = key.isalpha() and len(key) > 1
                names.add(NAMES.get(key, key.capitalize() if is_word else key))
    return names


def _named(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


def _common() -> str:
    return PAGE.partition("## Keys")[2].partition("## Screens")[0]


def _own(title: str) -> str:
    """Return the part of the page about a screen; the calls of a kernel need none."""
    found = re.search(
        rf"^\*\*{re.escape(title)}\*\*.*?(?=^\*\*[A-Z]|^## )", PAGE, re.MULTILINE | re.DOTALL
    )
    return found[0] if found else ""


@pytest.mark.parametrize("title", SCREENS)
def test_every_key_of_a_screen_is_documented(title: str) -> None:
    """Keys of a screen itself are in its own part, the keys of all screens in the common table."""
    own: list[type] = []
    shared: list[type] = [VirtualTable]
    for kind in SCREENS[title].__mro__:
        if kind.__module__.startswith(("profkit.tui.widgets.", "profkit.tui.screens.base")):
            shared.append(kind)
        elif kind.__module__.startswith("profkit.tui."):
            own.append(kind)
    assert _bound(own) - _named(_own(title)) == set()
    assert _bound(shared) - _named(_common()) == set()


def test_every_key_of_the_app_is_documented() -> None:
    assert _bound((ProfkitApp,)) - _named(_common()) == set()


def test_help_and_page_name_the_digits_of_the_screens() -> None:
    digits = sorted(kind.KEY for kind in load_screens().values() if kind.KEY.isdigit())
    assert digits == [str(number) for number in range(1, len(digits) + 1)]
    assert f"{digits[0]} to {digits[-1]} change the screen" in (verb.__doc__ or "")
    assert f"`{digits[0]}` to `{digits[-1]}`" in _common()
