"""Runs of sharded jobs for the tests of rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from profkit.trace import Trace
from tests.sharded_runs import Script, sharded_run

Make: TypeAlias = Callable[..., Trace]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that records a sharded job, of which it is given the script."""
    count = iter(range(100))

    def made(
        job: Any,
        *,
        config: Any = None,
        ranks: int = 2,
        samples: int = 8,
        cores: int = 8,
        **options: Any,
    ) -> Trace:
        number = next(count)
        script: Script = lambda rank: list(job(rank, **options))  # noqa: E731
        folder = tmp_path / f"run{number}"
        facts: dict[str, Any] = {"samples": samples, "config": config, "cores": cores}
        return Trace.open(sharded_run(folder, script, ranks=ranks, seed=number, **facts))

    return made
