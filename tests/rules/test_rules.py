"""Properties of every rule; a new rule is tested as soon as its module exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from profkit.explain.explained import explain
from profkit.explain.rules import base, host_busy, late_rank
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
    assert re.search(rf'[Cc]ause(\.from_row)?\(\s*"{name}"', Path(str(module.__file__)).read_text())


@pytest.mark.parametrize("name", RULES.names())
def test_the_kinds_that_a_rule_explains_exist(name: str) -> None:
    module = importlib.import_module(f"profkit.explain.rules.{name}")
    assert set(getattr(module, "EXPLAINS", ())) <= set(RULES.names())
    text = Path(str(module.__file__)).read_text()
    assert not re.search(r'(all_of|explains=|takes=)[\[({]*"', text), "name kinds in EXPLAINS"


def test_the_kinds_that_other_constants_name_exist() -> None:
    named = {base.SETTING_CHANGED, late_rank.WAITING_KIND, *host_busy.EXPLAINS_WITH_INPUT}
    named.update(*late_rank.KINDS_BY_ROW.values())
    assert named <= set(RULES.names())


@pytest.mark.parametrize("name", RULES.names())
def test_each_kind_stands_in_the_documentation(name: str) -> None:
    assert f"`{name}`" in (Path(__file__).parents[2] / "docs/causes.md").read_text()
