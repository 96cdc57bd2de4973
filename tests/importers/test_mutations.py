"""A few hundred of the many mutations that `benchmarks/mutate_traces.py` makes."""

from __future__ import annotations

import pytest

from tests.scripts import load

mutate_traces = load("mutate_traces")


@pytest.mark.parametrize("form", list(mutate_traces.SOURCES))
def test_damage_ends_in_a_run_or_in_one_line(form: str) -> None:
    found = mutate_traces.run([form], 150, 11)[form]
    assert found.failures == []
    assert sum(found.outcomes.values()) == 150


def test_the_check_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the door that turns damage into one line, the mutations must be seen to fail."""
    monkeypatch.setattr(
        "profkit.importers.flight_recorder.load",
        lambda path: __import__("pickle").loads(path.read_bytes()),
    )
    assert mutate_traces.run(["flight_recorder-pickle"], 60, 11)["flight_recorder-pickle"].failures
