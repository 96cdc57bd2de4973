"""Marks that cost a short step too much are made in fewer steps, and figures stay right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.instrument.mark_budget import FEWEST_STEPS, MOST_NS, RAREST, MarkBudget
from profkit.instrument.recorder import BLOCK, STEPS_DECIDED
from profkit.testing import FakeClock
from profkit.trace import Trace
from tests.accelerator.devices import Event
from tests.accelerator.jobs import MS, Job, run_ranks
from tests.accelerator.torch_job import TorchRank, train
from tests.device.screens import report

US = 1_000
SHORT = Job(
    steps=2_400, layers=((300 * US, 600 * US),), optimizer_ns=300 * US, copy_ns=100 * US,
    loss_every=1,
)  # fmt: skip
"""A step of 1.3 ms."""


def _expensive(price_ns: int) -> Any:
    """Return a loop on a device whose events take so long to record."""

    def loop(rank: Any) -> None:
        host = rank.host

        def meet(event: Event, operation: str) -> None:
            if operation == "record" and not host.in_writer:
                host.work(price_ns)

        rank.device.event_fault = meet
        train(rank)

    return loop


class Measured:
    """What a job's steps took at its end, bare and recorded, and what was timed."""

    def __init__(self, folder: Path, price_ns: int) -> None:
        bare = run_ranks(TorchRank, [SHORT], _expensive(0))
        done = run_ranks(TorchRank, [SHORT], _expensive(price_ns), folder / "run")
        assert done.run is not None
        self.run = done.run
        steps = Trace.open(done.run).steps.to_pylist()
        self.measured = [row["step"] for row in steps if row["instrumented"]]
        late = [row["end_ns"] - row["start_ns"] for row in steps[1_600:]]
        self.added_ns = sum(late) / len(late) - bare.ended_ns[0] / SHORT.steps
        self.added_ns += 1_000_000_000_000 / SHORT.steps  # the clock's first reading


def test_expensive_marks_are_made_in_fewer_steps(tmp_path: Path) -> None:
    found = Measured(tmp_path, 40 * US)
    late = [step for step in found.measured if step >= 1_600]
    assert 0 < len(late) <= 200
    assert all((step // BLOCK) % 2 == 0 for step in late)
    assert found.added_ns <= 2 * MOST_NS, "half of it is the promise's other half"
    view = build_overview(Trace.open(found.run))
    assert report(found.run)["forward"] == pytest.approx(300 * US, rel=0.2)
    assert any("all but one in 8 steps" in notice for notice in view.quality)


def test_cheap_marks_are_made_in_all_steps(tmp_path: Path) -> None:
    assert len(Measured(tmp_path, 2 * US).measured) == SHORT.steps


class Steps:
    """A recorder that has done some steps."""

    def __init__(self) -> None:
        self.step_index = 0
        self.every: list[int] = []

    def time_fewer(self, every: int) -> None:
        self.every.append(every)


@pytest.mark.parametrize(
    ("price_us", "marks", "step_ms", "every"),
    [
        (7, 10, 1.4, []),  # 0.07 ms
        (10, 13, 1.4, [2]),  # 0.13 ms
        (14, 13, 1.4, [4]),
        (14, 13, 25.0, []),  # 0.7 %
        (30, 13, 25.0, [2]),  # 1.6 %
        (1_000, 1_000, 1.4, [RAREST]),
    ],
)
def test_the_number_of_timed_steps_follows_from_their_price(
    price_us: float, marks: int, step_ms: float, every: list[int]
) -> None:
    clock, steps = FakeClock(), Steps()
    budget, read = MarkBudget(steps, price_us * US, clock), 0
    for _ in range(20 * RAREST):
        rows = FEWEST_STEPS // 2
        steps.step_index += rows
        clock.advance(round(rows * step_ms * MS))
        read += round(rows * marks / budget.every)
        budget.look(read)
    assert steps.every == every
    assert STEPS_DECIDED <= FEWEST_STEPS
