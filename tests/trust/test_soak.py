"""Recording leaves nothing open and loses no step.

`make trust` measures the memory over hours.
"""

from __future__ import annotations

from pathlib import Path

from tests.scripts import load


def test_nothing_is_left_open(tmp_path: Path) -> None:
    found = load("soak").soak(tmp_path, 1.0)
    assert found.whole
    assert found.steps
    assert not found.grows
