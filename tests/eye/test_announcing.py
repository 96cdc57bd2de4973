"""A process tells the eye of its host what to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profkit.eye import announcing


def test_an_eye_on_another_host_reads_nothing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of other nodes waited for an answer that nobody gives, and had no lines."""
    monkeypatch.setenv(announcing.EYE_VARIABLE, f"{os.getppid()}@elsewhere")
    assert announcing.describe(0, 1, native=1, witness=0) == {}
    assert "on this host" in (announcing.why_not_read(tmp_path) or "")
    monkeypatch.setenv(announcing.EYE_VARIABLE, announcing.name_eye(os.getppid()))
    assert announcing.describe(0, 1, native=1, witness=0)["rank"] == 0
    assert announcing.why_not_read(tmp_path) is None
