"""`profkit workloads`: a page per system, at 80 columns."""

from __future__ import annotations

import json

from profkit.plugins import WORKLOADS
from tests.cli.conftest import Command, profkit

__all__ = ["profkit"]


def test_the_list_is_readable_at_80_columns(profkit: Command) -> None:
    lines = profkit("workloads").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name in WORKLOADS.names():
        workload = WORKLOADS.load(name)
        assert f"{name}: {workload.title}" in lines
    # A setting is a row: no row has a second one.
    assert sum(line.strip().startswith("batch size") for line in lines) == len(WORKLOADS.names())


def test_differences_from_the_published_runs_are_said(profkit: Command) -> None:
    listed = {each["name"]: each for each in json.loads(profkit("workloads", "--json").stdout)}
    text = " ".join(profkit("workloads").stdout.split())
    for each in listed.values():
        assert each["departures"]
        assert each["figures"]
        for departure in each["departures"]:
            assert departure in text
