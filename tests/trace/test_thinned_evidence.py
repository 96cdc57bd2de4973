"""What `explain` reads of a thinned run: of its sample or of all its steps, never of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.evidence import Evidence
from profkit.explain.rules.bad_samples import share_of_short_steps, short_steps_add_ns
from profkit.explain.rules.compiling import added_ns, in_figures, later_ns
from profkit.explain.rules.skipped_amp_steps import skipped_share
from profkit.explain.rules.worker_start import epoch_start_ns
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import COMPILING, EPOCH_START
from profkit.trace import Trace
from tests.trace.test_thinning import Job, check_same, compiled, record

EPOCH, PARTIAL, OVERFLOW, COMPILE = 40, 25, 100, 10
WAIT_NS = 300_000_000


class Eventful(Job):
    """Short epochs that begin with a wait, short batches, overflows and compilations."""

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        begins = step % EPOCH == 0
        for table, row in super().rows(step):
            if table == "events":
                continue
            if begins and row.get("phase") == "data":
                row["end_ns"] += WAIT_NS
                self.now += WAIT_NS
            elif begins and table == "spans":
                row["start_ns"] += WAIT_NS * (row["start_ns"] < self.now - WAIT_NS // 2)
            if table == "steps":
                if step % COMPILE == 3 and step > 10:
                    yield "events", compiled(self.now - 5)
                row["end_ns"] = self.now
                row["epoch"] = step // EPOCH
                row["sample_count"] = 16 if step % PARTIAL == 7 else 32
                row["grad_scale"] = 1024.0 if step % OVERFLOW < OVERFLOW // 2 else 2048.0
            yield table, row


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Evidence, Evidence]:
    """The same run in full and thinned."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for name, thinned in (("full", False), ("thinned", True)):
        record(folder / name, thinned=thinned, job_type=Eventful)
        trace = Trace.open(folder / name)
        found.append(Evidence(trace))
    full, sampled = found
    assert sampled.costs.one_in >= 16
    return full, sampled


def test_only_first_steps_of_epochs_are_their_starts(pair: tuple[Evidence, Evidence]) -> None:
    for evidence in pair:
        starts = evidence.costs.selection.which[EPOCH_START]
        assert len(starts)
        assert (starts % EPOCH == 0).all()


def test_steps_of_the_whole_run_are_counted_from_its_sums(
    pair: tuple[Evidence, Evidence],
) -> None:
    expected, found = pair
    assert sum(found.in_all.values()) == sum(expected.in_all.values())
    assert found.in_all[EPOCH_START] == expected.in_all[EPOCH_START] > 80


def test_starts_of_epochs_cost_what_they_do_in_full(pair: tuple[Evidence, Evidence]) -> None:
    expected, found = (each.figure(epoch_start_ns) for each in pair)
    assert expected is not None
    assert found is not None
    assert found.value == pytest.approx(expected.value, rel=0.1)


def test_lowered_scales_are_a_share_of_the_sampled_steps(tmp_path: Path) -> None:
    record(tmp_path / "run", thinned=True, job_type=Eventful, steps=9_000)
    trace = Trace.open(tmp_path / "run")
    found = Evidence(trace).figure(skipped_share)
    assert found <= 0.02


def test_short_batches_are_a_share_of_the_sampled_steps(pair: tuple[Evidence, Evidence]) -> None:
    expected, found = (each.figure(share_of_short_steps) for each in pair)
    assert expected == pytest.approx(1 / PARTIAL, rel=0.2)
    assert found == pytest.approx(expected, abs=0.025)
    expected, found = (each.figure(short_steps_add_ns) for each in pair)
    assert found == pytest.approx(expected, rel=0.5)


def test_compilations_are_spread_over_all_steps(pair: tuple[Evidence, Evidence]) -> None:
    costs = []
    for evidence in pair:
        ledger = SimpleNamespace(batch_factor=lambda samples: 1.0)
        case: Any = SimpleNamespace(before=evidence, after=evidence, ledger=ledger)
        costs.append(added_ns(case, 0.0, float(later_ns(evidence).max(axis=0).sum())))
        assert not in_figures(evidence)
    assert costs[1] == pytest.approx(costs[0], rel=0.01)


def test_steps_that_compile_are_excluded_unless_most_do(pair: tuple[Evidence, Evidence]) -> None:
    full, thinned = pair
    check_same(full.trace, thinned.trace)
    selection = frame_of(thinned.trace).selection
    assert not np.isin(selection.steps, selection.which[COMPILING]).any()
    assert build_overview(full.trace).selection.left_out[COMPILING] > 200
