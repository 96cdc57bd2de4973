"""Blocks of an experiment are compared with the steps around them, if both are alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.experiments import Experiment, find_experiments
from profkit.analysis.slowed import unlike_steps
from profkit.schema import open_schema
from profkit.vocab import COMPILED, COMPILER, EXPERIMENT, EXPERIMENT_CUT, EXPERIMENTS

MS = 1_000_000
STEPS, LENGTH = 600, 10
BLOCKS = (50, 150, 250, 350, 450)


def found_in(
    longer: Mapping[int, float] | None = None,
    other: Mapping[int, float] | None = None,
    unfit: Collection[int] = (),
    marks: Mapping[str, int] | None = None,
    ranks: int = 1,
) -> Experiment:
    """Return the blocks about `forward`; steps take 40 ms, and 60 ms in a block.

    `longer` steps take more, `other` ones as well, but in the phase `other` of the last rank.
    """
    longer, other, marks = longer or {}, other or {}, marks or {}
    blocks = np.concatenate([np.arange(start, start + LENGTH) for start in BLOCKS])
    steps, spans = [], []
    for rank in range(ranks):
        end = 0
        for step in range(STEPS):
            own = other.get(step, 0.0) if rank == ranks - 1 else 0.0
            start = end
            end += round(MS * ((60 if step in blocks else 40) + longer.get(step, 0.0) + own))
            steps.append({"rank": rank, "step": step, "start_ns": start, "end_ns": end})
            if own:
                times = {"start_ns": start, "end_ns": start + round(own * MS)}
                spans.append({"rank": rank, "step": step, "phase": "other", "depth": 0, **times})
                inner = {"phase": "forward", "depth": 1}
                spans.append({"rank": rank, "step": step, **times, **inner})
    samples = []
    for step in blocks:
        samples.append((EXPERIMENTS, f"{EXPERIMENT}forward", float(step), 0))
    for metric, step in marks.items():
        source = EXPERIMENTS if metric == EXPERIMENT_CUT else COMPILER
        samples.append((source, metric, float(step), steps[step]["end_ns"]))
    names = ("source", "metric", "value", "time_ns")
    table = pa.table(dict(zip(names, map(list, zip(*samples, strict=True)), strict=True)))
    table = table.append_column("rank", pa.array([0] * len(samples)))
    none = open_schema("spans").empty_table()
    trace: Any = SimpleNamespace(
        steps=pa.Table.from_pylist(steps),
        spans=pa.Table.from_pylist(spans) if spans else none,
        samples=table,
        sums=open_schema("sums").empty_table(),
        ranks=range(ranks),
    )
    usual = np.setdiff1d(np.arange(STEPS), unlike_steps(table))
    fit = np.setdiff1d(np.arange(STEPS), [*usual, *unfit])
    return find_experiments(trace, usual, fit)["forward"]


def test_blocks_are_compared_with_the_steps_around_them() -> None:
    found = found_in()
    assert len(found.slowed) == len(BLOCKS)
    assert found.share.value == pytest.approx(30 / 40)
    assert (found.dropped, found.beside_ns) == (0, 0.0)


def test_a_block_with_a_step_that_no_figure_is_about_is_not_used() -> None:
    """The start of an epoch, for example, which waits for new workers."""
    found = found_in(longer={155: 5_000}, unfit=[155])
    assert found.share.value == pytest.approx(30 / 40)
    assert (len(found.slowed), found.dropped) == (4, 1)
    settles = found_in(longer={151: 5_000}, unfit=[151])
    assert settles.dropped == 1, "what it leaves behind is in the steps after it"


@pytest.mark.parametrize("metric", [EXPERIMENT_CUT, f"{COMPILED}f"])
def test_a_block_that_compiles_or_was_not_slowed_to_its_end_is_not_used(metric: str) -> None:
    found = found_in(longer={255: 900}, marks={metric: 255})
    assert found.share.value == pytest.approx(30 / 40)
    assert (len(found.slowed), found.dropped) == (4, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_block_with_an_evaluation_is_not_used(ranks: int) -> None:
    found = found_in(other={356: 400}, ranks=ranks)
    assert found.share.value == pytest.approx(30 / 40)
    assert (len(found.slowed), found.dropped) == (4, 1)


def test_evaluations_around_the_blocks_are_no_time_that_gets_faster() -> None:
    """Nor is the step after each, in which other ranks may wait for the one that evaluates."""
    every = dict.fromkeys(range(20, STEPS, 100), 400.0)
    found = found_in(other=every)
    assert found.share.value == pytest.approx(30 / 40)
    usual = STEPS - len(BLOCKS) * (LENGTH + 4)
    assert found.beside_ns == pytest.approx(MS * 400 * len(every) / usual, rel=1e-3)


def test_what_each_step_does_in_other_is_not_slowed_and_not_halved() -> None:
    found = found_in(other=dict.fromkeys(range(STEPS), 10.0))
    assert found.share.value == pytest.approx(30 / 40)
    assert found.beside_ns == pytest.approx(10 * MS)
    assert found.dropped == 0


def test_if_no_block_is_fit_there_is_no_figure() -> None:
    found = found_in(unfit=[start + 5 for start in BLOCKS])
    assert (len(found.slowed), found.dropped) == (0, len(BLOCKS))
