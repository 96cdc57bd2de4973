"""The source stays readable: limits on lines, functions, modules and density."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import measures
from tests.house.test_packaging import TOP

MOST_PER_THOUSAND = {
    "functions per 1,000": 62,  # the goal is 55
    "ternaries per 1,000": 12,
    "comprehensions per 1,000": 12,
    "private functions used once, %": 15,
    "vague docstring openings, %": 2,
}
FORBIDDEN = (
    "docstring openings too long",
    "nested conditionals",
    "statements with two comprehensions",
    "lines too long",
    "functions too long",
    "modules too long",
)
WIDE_TABLES = {"tests/importers/texts/test_texts.py"}
"""Tables of cases with a row per line, which nobody could compare if they were wrapped."""


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    modules = measures.measure([TOP / name for name in measures.PACKAGES])
    assert len(modules) > 300
    return measures.summarise(modules)


@pytest.mark.parametrize("name", MOST_PER_THOUSAND)
def test_the_source_is_not_dense(found: dict[str, float], name: str) -> None:
    assert found[name] <= MOST_PER_THOUSAND[name], "python tests/house/measures.py -v"


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_place_is_over_a_limit(found: dict[str, float], name: str) -> None:
    assert found[name] == 0, "python tests/house/measures.py -v names the places"


def test_benchmarks_and_tests_fit_on_a_screen() -> None:
    """Lines of both, and functions and modules of benchmarks, have the limits of the source."""
    benchmarks = measures.measure([TOP / "benchmarks"])
    tests = measures.measure([TOP / "tests"])
    assert len(benchmarks) > 40
    assert len(tests) > 150
    wide = []
    for module in (*benchmarks, *tests):
        if module.path.relative_to(TOP).as_posix() not in WIDE_TABLES:
            wide += module.wide_lines
    assert wide == []
    assert [place for module in benchmarks for place in module.long_functions] == []
    assert [module.path for module in benchmarks if module.lines > measures.LONGEST_MODULE] == []


def test_each_limit_sees_what_it_forbids(tmp_path: Path) -> None:
    """A module with one violation of each kind, so that no limit is blind."""
    body = "\n".join(["    pass"] * measures.LONGEST_FUNCTION)
    lines = [
        f'"""What it is, {"x" * 80}"""',
        "value = 1 if a else 2 if b else 3",
        "pair = [x for x in y], [x for x in y]",
        f"text = '{'x' * measures.LONGEST_LINE}'",
        f"def _once():\n{body}",
        "_once()",
        *["pass"] * measures.LONGEST_MODULE,
    ]
    path = tmp_path / "module.py"
    path.write_text("\n".join(lines))
    summary = measures.summarise([measures.measure_file(path)])
    assert {name: summary[name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, 1)
    assert summary["private functions used once, %"] == 100
    assert summary["vague docstring openings, %"] == 100
    assert summary["ternaries per 1,000"] > 0
    assert summary["comprehensions per 1,000"] > 0
