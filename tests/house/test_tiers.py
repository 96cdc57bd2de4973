"""The tables of tiers name tests that exist."""

from __future__ import annotations

from tests.house.test_packaging import TOP
from tests.tiers import JOBS, NIGHTLY


def test_each_entry_is_a_module_or_a_test_of_one() -> None:
    for entry in (*JOBS, *NIGHTLY):
        module, _, name = entry.partition("::")
        path = TOP / "tests" / module
        assert path.exists(), entry
        assert f"def {name.partition('[')[0]}" in path.read_text(encoding="utf-8"), entry
    assert len({*JOBS, *NIGHTLY}) == len(JOBS) + len(NIGHTLY)
