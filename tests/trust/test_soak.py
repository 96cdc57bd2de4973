"""Recording leaves nothing open, and every step is there; what it does to memory over hours, `make trust` measures."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import load


def test_nothing_is_left_open(tmp_path: Path) -> None:
    found = load("soak").soak(tmp_path, 2.0)
    assert found.whole
    assert found.steps > 100
    assert found.descriptors[0] == found.descriptors[1]
    assert found.threads[0] == found.threads[1]
