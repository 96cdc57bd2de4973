"""Some hundreds of the mutations that `benchmarks/mutate_traces.py` makes by the ten thousands."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "mutate_traces.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("mutate_traces", _SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["mutate_traces"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutate_traces = _load()


@pytest.mark.parametrize("form", list(mutate_traces.SOURCES))
def test_damage_ends_in_a_run_or_in_one_line(form: str) -> None:
    found = mutate_traces.run([form], 150, 11)[form]
    assert found.failures == []
    assert sum(found.outcomes.values()) == 150


def test_the_check_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the door that turns damage into one line, the mutations must be seen to fail."""
    monkeypatch.setattr("profkit.importers.flight_recorder.load", lambda path: __import__("pickle").loads(path.read_bytes()))
    assert mutate_traces.run(["flight_recorder-pickle"], 60, 11)["flight_recorder-pickle"].failures
