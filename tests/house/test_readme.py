"""The figures in README.md and README.zh-CN.md agree with the pages and with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.house.test_packaging import TOP
from tests.scripts import load

figures, reliability_page = load("figures"), load("reliability_page")
READMES = tuple(figures.WORDS)
SCOREBOARDS = ("docs/accuracy.md", "docs/reliability.md", "docs/performance.md")


def _content(readme: str) -> str:
    return (TOP / readme).read_text(encoding="utf-8")


@pytest.mark.parametrize("readme", READMES)
def test_the_figures_are_those_of_the_scoreboards(readme: str) -> None:
    assert _content(readme) == figures.quoted(readme, _content(readme), figures.figures()), (
        "run 'python benchmarks/figures.py'"
    )


def test_both_quote_the_same_figures() -> None:
    one, other = (set(re.findall(r"{(\w+)}", figures.WORDS[readme])) for readme in READMES)
    assert one == other == set(figures.figures())


@pytest.mark.parametrize("readme", READMES)
def test_it_opens_with_three_lines_a_picture_and_the_status(readme: str) -> None:
    opening = _content(readme).partition("\n## ")[0].strip().split("\n\n")
    title, language, description, picture, status = opening
    assert title == "# profkit"
    assert language.startswith("[")
    assert len(description.splitlines()) == 3
    assert picture.startswith("![")
    assert status.startswith("**")
    assert all(f"({page})" in _content(readme) for page in SCOREBOARDS)


def test_both_show_the_same_ledger_and_the_same_screen() -> None:
    (ledger, screen), (other_ledger, other_screen) = (_shown(readme) for readme in READMES)
    assert "Where the time goes" in ledger
    assert (ledger, screen) == (other_ledger, other_screen)
    assert (TOP / screen).exists()


def _shown(readme: str) -> tuple[str, str]:
    content = _content(readme)
    picture = re.search(r"!\[.*\]\((.*)\)", content)
    assert picture is not None
    ledger = next(block for block in content.split("```") if "Where the time goes" in block)
    return ledger, picture[1]


@pytest.mark.parametrize("readme", READMES)
def test_every_file_that_is_linked_is_there(readme: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", _content(readme))
    assert len(links) >= 5
    assert [link for link in links if not (TOP / link).exists()] == []


def test_the_page_of_reliability_is_what_was_found() -> None:
    page = (TOP / "docs/reliability.md").read_text(encoding="utf-8")
    assert page == reliability_page.render(reliability_page.kept_results()), (
        "run 'python benchmarks/reliability.py --render'"
    )


def test_a_figure_that_changed_is_written_into_both(tmp_path: Path) -> None:
    for path in (
        *READMES,
        "docs/accuracy.md",
        "docs/reliability/results.json",
        "docs/performance/results.json",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((TOP / path).read_bytes())
    results = json.loads((tmp_path / "docs/performance/results.json").read_text())
    results["startup"]["found"]["profkit --help"]["over_bare_ms"] = 987.4
    (tmp_path / "docs/performance/results.json").write_text(json.dumps(results))
    figures.write(tmp_path)
    assert ["987 ms" in (tmp_path / readme).read_text(encoding="utf-8") for readme in READMES] == [
        True,
        True,
    ]
