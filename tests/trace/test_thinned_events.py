"""Steps of events in long runs: they are in no sum of used steps, and keep their evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.experiments import cost_share, find_experiments
from profkit.analysis.selection import EXPERIMENT as SLOWED
from profkit.analysis.selection import steady_steps
from profkit.analysis.slowed import unlike_steps
from profkit.trace import Trace
from profkit.vocab import EXPERIMENT, EXPERIMENTS
from tests.trace.test_thinning import Job, check_same, record

BLOCK, EVERY = 10, 100


class Experimenting(Job):
    """A job in which a block of steps in each hundred is slowed."""

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        is_slowed = step > EVERY and step % EVERY >= EVERY - BLOCK
        if is_slowed:
            names = {"device": None, "source": EXPERIMENTS, "metric": f"{EXPERIMENT}data"}
            yield "samples", {**names, "time_ns": self.now, "value": float(step)}
        for table, row in super().rows(step):
            if table == "steps" and is_slowed:
                self.now += self.now - row["start_ns"]
                row["end_ns"] = self.now
            yield table, row


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """The same run with an experiment, in full and thinned, of two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    for name, thinned in (("full", False), ("thinned", True)):
        for rank in range(2):
            ranks = {"rank": rank, "ranks": 2, "job_type": Experimenting}
            record(folder / name, thinned=thinned, **ranks)  # type: ignore[arg-type]
    return Trace.open(folder / "full"), Trace.open(folder / "thinned")


def test_slowed_steps_are_in_no_sum_of_used_steps(runs: tuple[Trace, Trace]) -> None:
    full, thinned = runs
    check_same(full, thinned)
    assert steady_steps(full).left_out[SLOWED] > 400


@pytest.mark.parametrize("steps", [2_040, 2_095, 2_130, 2_170])
def test_slowed_steps_at_the_end_are_in_no_sum(tmp_path: Path, steps: int) -> None:
    for name, thinned in (("full", False), ("thinned", True)):
        record(tmp_path / name, thinned=thinned, steps=steps, job_type=Experimenting, close=False)
    check_same(Trace.open(tmp_path / "full"), Trace.open(tmp_path / "thinned"))


def test_blocks_of_an_experiment_are_kept_with_the_steps_around_them(
    runs: tuple[Trace, Trace],
) -> None:
    expected, found = (
        find_experiments(run, steady_steps(run).steps, unlike_steps(run.samples))["data"]
        for run in runs
    )
    assert len(found.slowed) >= 8
    assert len(found.slowed) < len(expected.slowed), "the blocks were not thinned"
    assert found.share.low is not None
    assert found.share.high is not None
    assert found.share.low < 1 < found.share.high
    assert found.share.value == pytest.approx(expected.share.value, rel=0.05)


def test_what_the_blocks_cost_is_that_of_the_whole_run(runs: tuple[Trace, Trace]) -> None:
    expected, found = (cost_share(run, steady_steps(run).steps) for run in runs)
    assert found == pytest.approx(expected, rel=0.1)
