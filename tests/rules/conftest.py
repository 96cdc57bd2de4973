"""Runs of sharded jobs for the tests of rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from profkit.trace import Trace
from tests.sharded_runs import Script, sharded_run

Make: TypeAlias = Callable[..., Trace]


@pytest.fixture(scope="session")
def recorded() -> dict[str, Trace]:
    """The sharded jobs that tests have recorded, by what they were asked for."""
    return {}


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, Trace]) -> Make:
    """Return a function that records a sharded job, of which it is given the script.

    Tests that ask for the same job with the same seed share its run.
    """
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
        key = ""
        if inspect.isfunction(job) and "<locals>" not in job.__qualname__:
            name = f"{job.__module__}.{job.__qualname__}"
            key = repr((name, number, ranks, samples, cores, config, options))
        if key in recorded:
            return recorded[key]
        script: Script = lambda rank: list(job(rank, **options))  # noqa: E731
        folder = tmp_path_factory.mktemp("sharded")
        facts: dict[str, Any] = {"samples": samples, "config": config, "cores": cores}
        trace = Trace.open(sharded_run(folder / "run", script, ranks=ranks, seed=number, **facts))
        if key:
            recorded[key] = trace
        return trace

    return made
