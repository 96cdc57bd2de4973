"""Every recipe of docs/sql.md gives the figure of `--json` that it names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profkit import cli
from profkit.testing import synthetic_trace
from tests.house.test_packaging import TOP

pytest.importorskip("duckdb", reason="the extra 'sql' is not installed")

DIGITS = 14
"""docs/sql.md promises these; the order in which numbers are added changes the last ones."""


class Recipe(NamedTuple):
    title: str
    verb: str
    paths: tuple[str, ...]
    query: str


def recipes() -> Iterator[Recipe]:
    """Yield the recipes of the page."""
    page = (TOP / "docs/sql.md").read_text(encoding="utf-8").partition("## Recipes")[2]
    for section in page.split("\n### ")[1:]:
        title = section.partition("\n")[0]
        source = re.search(r"^`(report|explain)`: ((?:`[^`]+`,?\s)+)", section, re.MULTILINE)
        query = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
        assert source, title
        assert query, title
        yield Recipe(title, source[1], tuple(re.findall(r"`([^`]+)`", source[2])), query[1])


RECIPES = list(recipes())


class Runs(NamedTuple):
    base: Path
    target: Path


@pytest.fixture(scope="module", params=[(1, 1), (2, 2), (1, 2)])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two runs of some ranks with kernels and stacks; one rank alone exchanges nothing."""
    folder, (before, after) = tmp_path_factory.mktemp("runs"), request.param
    common: Any = {"kernels_per_step": 4, "stacks": True, "steps_per_epoch": 17}
    phase_ns = {"data": 6_000_000}
    return Runs(
        synthetic_trace(folder / "base", ranks=before, steps=60, last_batch_size=9, **common),
        synthetic_trace(
            folder / "target", ranks=after, steps=70, seed=1, phase_ns=phase_ns, **common
        ),
    )


@pytest.fixture(scope="module")
def figures(runs: Runs) -> Mapping[str, Any]:
    return {
        "report": _json(["report", str(runs.base)]),
        "explain": _json(["explain", str(runs.base), str(runs.target)]),
    }


def _json(arguments: list[str]) -> Any:
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main([*arguments, "--json"]) == 0
    return json.loads(printed.getvalue())


def test_there_are_at_least_twenty() -> None:
    assert len(RECIPES) >= 10
    assert {recipe.verb for recipe in RECIPES} == {"report", "explain"}
    assert len({recipe.query for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_gives_the_figure_of_the_verb(
    recipe: Recipe, runs: Runs, figures: Mapping[str, Any]
) -> None:
    names = [runs.base] if recipe.verb == "report" else list(runs)
    found = _json(["sql", *map(str, names), recipe.query])["rows"]
    shown = [_at(figures[recipe.verb], path) for path in recipe.paths]
    is_alone = figures["report"]["ranks"] == 1
    if is_alone and None in shown:
        pytest.skip("one rank exchanges nothing")
    columns = [each if isinstance(each, list) else [each] for each in shown]
    expected = [list(row) for row in zip(*columns, strict=True)]
    assert expected or is_alone, "one rank exchanges nothing, several do"
    assert len(found) == len(expected)
    for row, wanted in zip(sorted(found, key=str), sorted(expected, key=str), strict=True):
        assert len(row) == len(wanted)
        for one, other in zip(row, wanted, strict=True):
            assert _same(one, other), (row, wanted)


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, float):
        return math.isclose(one, other, rel_tol=10.0**-DIGITS, abs_tol=0.0)
    return bool(one == other)


def _at(content: Any, path: str) -> Any:
    """Return what is at a path: `a.b`, `a[].b`, `a[key=value].b`, `keys(a)` or `values(a)`."""
    if called := re.fullmatch(r"(keys|values)\((.+)\)", path):
        found = _at(content, called[2])
        return None if found is None else list(getattr(found, called[1])())
    name, _, rest = path.partition(".")
    key, bracket, test = name.partition("[")
    inner = content[key] if content is not None else None
    if not bracket:
        return _at(inner, rest) if rest else inner
    if inner is None:
        return None
    return [_at(each, rest) for each in inner if _passes(each, test.rstrip("]"))]


def _passes(row: Mapping[str, Any], test: str) -> bool:
    parts = re.fullmatch(r"(\w*)(!?=?)(\w*)", test)
    assert parts
    key, operator, value = parts.groups()
    if not operator:
        return True
    return bool(row[key] == value) == (operator == "=")
