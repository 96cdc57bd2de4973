"""README.md and README.zh-CN.md open alike, and every link of every page leads to a file."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from profkit.cli import main
from tests.house.test_packaging import TOP

READMES = ("README.md", "README.zh-CN.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST_WORDS = 24_000
GENERATED = ("docs/gpu.md", "docs/nightly.md", "docs/schema.md")
"""Tables and results that commands write."""

MOST_SCREENS = 4
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def _pages() -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(TOP), "ls-files", "*.md"], capture_output=True, text=True, check=False
    )
    return [name for name in listed.stdout.split() if (TOP / name).exists()]


PAGES = _pages()
in_a_checkout = pytest.mark.skipif(not PAGES, reason="this is no git checkout")


def _content(page: str | Path) -> str:
    return (TOP / page).read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"```.*?```", "", _content(page), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@in_a_checkout
@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    missing = []
    for link in LINK.findall(CODE.sub("", _content(page))):
        if ":" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (TOP / page).parent / path if path else TOP / page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            missing.append(link)
    assert missing == []


@in_a_checkout
def test_a_file_that_the_sources_name_as_a_page_is_there() -> None:
    """Messages and comments send readers to pages of docs/."""
    named = set()
    for folder in ("profkit", "instrument", "collectors", "tui", "tests"):
        for path in (TOP / folder).rglob("*.py"):
            named.update(re.findall(r"\bdocs/[\w/-]+\.(?:md|svg)", _content(path)))
    assert [name for name in sorted(named) if not (TOP / name).exists()] == []


@in_a_checkout
def test_the_pages_are_short() -> None:
    prose = [page for page in PAGES if page not in GENERATED]
    assert sum(len(_content(page).split()) for page in prose) <= MOST_WORDS
    assert len(list((TOP / "docs/screens").iterdir())) <= MOST_SCREENS


@pytest.mark.parametrize("readme", READMES)
def test_it_opens_with_three_lines_a_picture_and_the_status(readme: str) -> None:
    opening = _content(readme).partition("\n## ")[0].strip().split("\n\n")
    title, language, description, picture, status = opening
    assert title == "# profkit"
    assert language.startswith("[")
    assert len(description.splitlines()) == 3
    assert picture.startswith("![")
    assert status.startswith("**")
    assert "(docs/results.md)" in _content(readme)


def test_both_show_the_same_ledger_and_the_same_screen() -> None:
    (ledger, screen), (other_ledger, other_screen) = (_shown(readme) for readme in READMES)
    assert "Where the time goes" in ledger
    assert (ledger, screen) == (other_ledger, other_screen)
    assert (TOP / screen).exists()


@pytest.mark.parametrize("readme", READMES)
def test_the_shown_commands_print_what_is_shown(
    readme: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`...` stands for lines that are left out."""
    monkeypatch.chdir(TOP)
    shown = re.findall(r"```\n\$ profkit (.*)\n([^`]*)```", _content(readme))
    assert len(shown) == 2
    for command, output in shown:
        assert main(shlex.split(command)) == 0
        printed = capsys.readouterr().out
        for piece in output.split("...\n"):
            assert piece in printed
            printed = printed.partition(piece)[2]


def _shown(readme: str) -> tuple[str, str]:
    content = _content(readme)
    picture = re.search(r"!\[.*\]\((.*)\)", content)
    assert picture is not None
    ledger = next(block for block in content.split("```") if "Where the time goes" in block)
    return ledger, picture[1]
