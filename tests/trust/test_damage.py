"""Damage of profkit's own files on a small scale, and proof that the checks matter.

Without the checks, these tests must fail.
"""

from __future__ import annotations

import pytest

from tests.scripts import load

mutate_runs, interrupt = load("mutate_runs"), load("interrupt")

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # a fork that only reads, or is killed


def test_no_damage_is_a_wrong_figure_a_crash_or_a_hang() -> None:
    found = mutate_runs.run(80, 11)
    assert found.failures == []
    assert sum(found.outcomes.values()) == 80
    assert found.growth_mb < mutate_runs.MOST_GROWTH_MB


def test_without_validation_it_is() -> None:
    assert mutate_runs.run(60, 3, validating=False).failures


@pytest.mark.parametrize("name", ["export csv", "baseline", "manifest", "cache"])
def test_what_was_written_when_it_was_killed_is_old_or_new_or_nothing(name: str) -> None:
    found = interrupt.run(name, 4, 11)
    assert sum(found.values()) == 4
    assert [state for state in found if state.startswith("HALF")] == []
