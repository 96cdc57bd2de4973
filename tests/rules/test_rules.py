"""Properties of every rule; a new rule is tested as soon as its module exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.explain.explained import explain
from profkit.explain.rules import base, late_rank
from profkit.explain.rules.base import Case
from profkit.plugins import RULES
from profkit.testing import synthetic_trace
from profkit.trace import Trace


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run and its repeat."""
    folder = tmp_path_factory.mktemp("runs")
    base, again = (
        synthetic_trace(folder / str(seed), ranks=2, steps=120, seed=seed) for seed in (1, 2)
    )
    return explain(Trace.open(base), Trace.open(again)).case


@pytest.mark.parametrize("name", RULES.names())
def test_a_rule_is_silent_below_the_noise(name: str, quiet: Case) -> None:
    assert RULES.load(name)(quiet) is None


@pytest.mark.parametrize("name", RULES.names())
def test_a_rule_says_what_it_is_and_gives_its_own_kind(name: str) -> None:
    module = importlib.import_module(f"profkit.explain.rules.{name}")
    assert module.__doc__
    assert re.search(rf'Finding(\.from_row)?\(\s*"{name}"', _source(name))


@pytest.mark.parametrize("name", RULES.names())
def test_the_kinds_that_a_rule_names_exist(name: str) -> None:
    assert set(_kinds_named_in(_source(name))) <= set(RULES.names())


def test_the_kinds_named_in_constants_exist() -> None:
    named = {base.SETTING_CHANGED, late_rank.WAITING_KIND}
    named.update(*late_rank.KINDS_BY_ROW.values())
    assert named <= set(RULES.names())


def test_kinds_are_found_where_rules_name_them() -> None:
    source = 'explains = ["a"]\nFinding(x, takes=all_of("b"))\nFinding(x, explains=("c", "d"))'
    assert sorted(_kinds_named_in(source)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", RULES.names())
def test_each_kind_stands_in_the_documentation(name: str) -> None:
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs/causes.md").read_text()


def _source(name: str) -> str:
    module = importlib.import_module(f"profkit.explain.rules.{name}")
    return Path(str(module.__file__)).read_text()


def _kinds_named_in(source: str) -> Iterator[str]:
    """Yield every text that a rule assigns or passes as a kind that it explains."""
    for node in ast.walk(ast.parse(source)):
        named: ast.AST | None = None
        if isinstance(node, ast.keyword) and node.arg in {"takes", "explains"}:
            named = node.value
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any("explains" in ast.unparse(target) for target in targets):
                named = _value_for("explains", targets[0], node.value)
        if named is not None:
            for inner in ast.walk(named):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner.value


def _value_for(name: str, target: ast.expr, value: ast.expr) -> ast.expr:
    """Return what an assignment, to one name or to several, gives to this name."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        names = [ast.unparse(each) for each in target.elts]
        return value.elts[names.index(name)]
    return value
