"""Properties of every rule; a new rule is tested as soon as its module exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from profkit.explain.explained import explain
from profkit.explain.named import KINDS
from profkit.explain.rules.base import Case
from profkit.explain.titles import TITLES, title_of
from profkit.plugins import RULES
from profkit.testing import synthetic_trace
from profkit.trace import Trace

TABLE = RULES.tables["counted"]


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


MODULES = sorted({*RULES.names()} - {name for names in RULES.tables.values() for name in names})
"""The rules with a module of their own."""


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_of_the_table_has_its_own_kind_and_remedy(name: str) -> None:
    assert RULES.load(name).kind == name
    assert RULES.load(name).remedy


@pytest.mark.parametrize("name", MODULES)
def test_a_rule_says_what_it_is_and_gives_its_own_kind(name: str) -> None:
    module = importlib.import_module(f"profkit.explain.rules.{name}")
    assert module.__doc__
    assert re.search(rf'[Cc]ause(\.from_row)?\(\s*"{name}"', Path(str(module.__file__)).read_text())


@pytest.mark.parametrize("name", MODULES)
def test_no_rule_imports_or_names_another(name: str) -> None:
    """What a rule and its neighbours share is in modules with a leading underscore."""
    text = Path(str(importlib.import_module(f"profkit.explain.rules.{name}").__file__)).read_text()
    for other in {*RULES.names(), *KINDS} - {name}:
        assert f'"{other}"' not in text
        assert not re.search(rf"rules(\.{other} import| import .*\b{other}\b)", text)


@pytest.mark.parametrize("name", sorted({*RULES.names(), *KINDS}))
def test_each_kind_has_a_title_and_stands_in_the_documentation(name: str) -> None:
    assert title_of(name) != name
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs/causes.md").read_text()


def test_no_other_kind_has_a_title() -> None:
    kinds = (Path(__file__).parents[2] / "docs/causes.md").read_text()
    assert [name for name in TITLES if f"`{name}`" not in kinds] == []
