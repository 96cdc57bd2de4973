"""Repeats of one job are pooled, with intervals that include run-to-run noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.repeats import group_repeats, pool_costs
from profkit.analysis.run_noise import widen
from profkit.cli import main
from profkit.errors import ExitCode
from profkit.explain.ledger import Verdict, compare
from profkit.frame.costs import OWN, RunCosts
from profkit.frame.estimate import Estimate
from profkit.frame.run_frame import frame_of
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS = 1_000_000


def _runs(folder: Path, speeds: Sequence[float], seed: int) -> list[Path]:
    """Runs of one job, each a little faster or slower than the next as a whole."""
    return [
        synthetic_trace(
            folder / f"{seed}-{place}",
            steps=80,
            seed=seed + place,
            jitter=0.01,
            phase_ns={"backward": round(24 * MS * speed)},
        )
        for place, speed in enumerate(speeds)
    ]


def _costs(runs: Sequence[Path]) -> list[RunCosts]:
    return [frame_of(Trace.open(run)).costs for run in runs]


def test_the_steps_of_all_repeats_are_the_sides(tmp_path: Path) -> None:
    runs = _costs(_runs(tmp_path, (1.0, 1.1, 0.9), 1))
    pooled = pool_costs(runs)
    assert pooled.repeats == tuple(run.steps for run in runs)
    assert np.array_equal(sum(pooled.parts.values()), pooled.wall_ns)
    assert pooled.wall_ns.sum() == sum(run.wall_ns.sum() for run in runs)
    assert pooled.apart[0].steps == sum(run.apart[0].steps for run in runs)


def test_one_run_is_no_repeat(tmp_path: Path) -> None:
    (alone,) = _costs(_runs(tmp_path, (1.0,), 1))
    assert pool_costs([alone]) is alone
    estimate = Estimate(1.0, 0.9, 1.1)
    assert widen([estimate], np.ones((1, 8)), np.ones((1, 8)), (8,)) == [estimate]


def test_runs_that_differ_widen_the_interval_and_alike_ones_do_not(tmp_path: Path) -> None:
    """Three runs that are 5 % apart cannot measure 3 %, however long each of them is."""
    steady, uneven = (
        _costs(_runs(tmp_path, speeds, seed))
        for speeds, seed in (((1.0, 1.0, 1.0), 1), ((0.9, 1.0, 1.1), 10))
    )
    slower = _costs(_runs(tmp_path, (1.06, 1.06, 1.06), 20))
    assert compare(pool_costs(steady), pool_costs(slower)).verdict is Verdict.REGRESSION
    assert compare(pool_costs(uneven), pool_costs(slower)).verdict is not Verdict.REGRESSION


@pytest.mark.parametrize("runs", [2, 3, 6])
def test_the_interval_is_students_over_the_runs(runs: int) -> None:
    """The width agrees with the textbook's table for runs whose steps are all alike.

    One run has nothing of the figure, so its noise does not multiply it.
    """
    table = {2: 12.706, 3: 4.303, 6: 2.571}
    values = np.arange(runs, dtype=float)
    (found,) = widen(
        [Estimate(values.mean(), values.mean(), values.mean())],
        np.repeat(values, 10)[None, :],
        np.ones((1, 10 * runs)),
        [10] * runs,
    )
    assert found.high is not None
    assert found.high - found.value == pytest.approx(
        table[runs] * values.std(ddof=1) / runs**0.5, rel=0.01
    )


def test_repeats_are_named_with_commas_or_by_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, target = (
        _runs(tmp_path / "base", (1.0, 1.01), 1),
        _runs(tmp_path / "target", (1.3, 1.31), 5),
    )
    words = (
        [",".join(map(str, base)), ",".join(map(str, target))],
        [str(tmp_path / "base"), str(tmp_path / "target")],
    )
    said = []
    for each in words:
        assert main(["explain", *each, "--json"]) == ExitCode.DONE
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "and 1 repeat" in said[0]


def test_runs_of_another_job_are_no_repeats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = synthetic_trace(tmp_path / "one", steps=40)
    other = synthetic_trace(tmp_path / "other", steps=40, batch_size=64)
    assert main(["explain", f"{one},{other}", str(one)]) == ExitCode.USAGE
    assert (
        "one and other are no repeats of one job: their batch_size differs"
        in capsys.readouterr().err
    )


def test_runs_of_one_configuration_are_grouped_whatever_their_seed(tmp_path: Path) -> None:
    def run(name: str, ranks: int, **config: object) -> Trace:
        return Trace.open(
            synthetic_trace(
                tmp_path / name, ranks=ranks, steps=5, config={"device": "cpu", **config}
            )
        )

    one, two, again, loader = (
        run("one", 1, seed=0),
        run("two", 2, seed=0),
        run("again", 2, seed=1),
        run("loader", 2, workers=4),
    )
    assert group_repeats([two, one, again, loader]) == [[two, again], [one], [loader]]


def test_what_profkit_costs_is_pooled_where_all_repeats_know_it(tmp_path: Path) -> None:
    one, other = _costs(_runs(tmp_path, (1.0, 1.0), 1))
    measured = [
        replace(one, switched=Estimate(100.0, 40.0, 160.0)),
        replace(other, switched=Estimate(200.0, 120.0, 280.0)),
    ]
    assert pool_costs(measured).switched == Estimate(150.0, 100.0, 200.0)
    partly = pool_costs([measured[0], other.without_own()])
    assert (partly.switched, OWN in partly.parts) == (None, False)
    assert np.array_equal(sum(partly.parts.values()), partly.wall_ns)
