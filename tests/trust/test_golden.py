"""Runs of earlier schema versions are read with exactly their values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.trace import Trace, verify
from profkit.vocab import SCHEMA_VERSION, Integrity
from tests.trust.golden import CONTENT, KEPT, describe

VERSIONS = sorted(KEPT.iterdir())


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_a_run_of_an_earlier_schema_is_read_as_it_was_written(folder: Path) -> None:
    kept = json.loads((folder / CONTENT).read_text())
    assert verify(folder / "run").state is Integrity.COMPLETE
    assert (
        describe(folder / "run", {table: list(each["sha256"]) for table, each in kept.items()})
        == kept
    )
    assert build_overview(Trace.open(folder / "run")).world_size == 2


def test_this_version_is_kept_too() -> None:
    assert "schema-{}.{}".format(*SCHEMA_VERSION) in {folder.name for folder in VERSIONS}, (
        "run 'python -m tests.trust.golden'"
    )
