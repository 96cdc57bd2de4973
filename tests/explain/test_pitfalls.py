"""Pitfalls of reading traces, by their number in an outside checklist of 27, that runs can show.

Those of traces of devices are in `test_pitfalls_devices.py`. Not everything can go wrong here:

| 8 | profkit reads no records of CUDA events; its own are reused after they were read          |
| 14 | it reads no counters of multiprocessors; NVML's utilisation is called `busy`, and says no  |
|    | more in any sentence                                                                      |
| 15 | it reads the counters of NVLink's data, for each direction, and says nothing of peers     |
| 16 | it reads no metrics of GPUs by id; the names of an export are                             |
| 24 | it states no use of a peak by the whole step; a kernel's share is of a measured ceiling   |
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.explain.ledger import Verdict
from profkit.testing.synthetic_timeline import BEGIN_NS, OUTSIDE
from profkit.trace import Trace
from tests.documents import gap_json, report_json, report_text
from tests.explain.conftest import MS, Make, plant, set_samples

TRACES = Path(__file__).parents[2] / "traces"


def test_rank_0_does_not_stand_for_all(make: Make) -> None:
    """3: the last of four ranks is late, and its neighbours only wait."""
    view = explain(
        make(4), make(4, seed=2, longer=plant("forward", lambda step: 12.0 + 0 * step, (3,)))
    )
    assert view.told_cells[0].ranks == (3,)


def test_the_length_of_a_collective_is_no_transfer(make: Make) -> None:
    """5: what the others wait in it is the late rank's; the exchange has no cause of its own."""
    late = plant("backward", lambda step: 20.0 + 0 * step, (0,))
    view = explain(make(2), make(2, seed=2, longer=late))
    row = view.ledger.find("allreduce")
    assert row is not None
    assert row.delta.value > 0
    assert "exposed_communication" not in [cause.kind for cause in view.causes]


def test_exposed_is_not_blocking(make: Make) -> None:
    """6: rank 1 takes 8 ms longer while rank 0, which takes 20 ms longer, delays the step."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("forward", lambda step: 20.0 + 0 * step, (0,))(name, ns)
        return plant("data", lambda step: 8.0 + 0 * step, (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    (cause,) = [each for each in view.causes if each.cost_ns]
    assert (cause.kind, cause.detail, cause.ranks) == ("late_rank", "forward", (0,))
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(20e6, rel=0.1)


def test_who_occupies_the_gap_did_not_make_it(make: Make) -> None:
    """7: all ranks wait in the exchange after rank 1 wrote a file in the step before."""
    late = plant(OUTSIDE, lambda step: 60.0 * (step % 6 == 5), (1,))
    view = explain(make(3), make(3, seed=2, longer=late))
    cell = view.told_cells[0]
    assert (cell.row, cell.ranks, cell.steps.period) == ("unknown", (1,), 6)


def test_savings_add_up_only_once(make: Make) -> None:
    """26: causes are of disjoint cells, so together they cost no more than the gap."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("data", lambda step: 10.0 + 0 * step)(name, ns)
        return plant(OUTSIDE, lambda step: 15.0 + 0 * step, (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    costs = [cause.cost_ns.value for cause in view.causes if cause.cost_ns and not cause.is_gain]
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    assert len(costs) == 2
    assert math.fsum(costs) == pytest.approx(gap_ns, rel=0.1)


def test_what_is_seen_is_called_inferred_without_a_place(make: Make) -> None:
    """27: a longer phase without a setting, a count or a line has no cause, only its own words."""
    view = explain(make(1), make(1, seed=2, longer=plant("forward", lambda step: 20.0 + 0 * step)))
    assert view.causes == ()
    assert view.open_cells[0].where == ""


def test_ranks_with_other_work_are_compared_by_sample(make: Make) -> None:
    """4: twice as many ranks: the cells are time per sample, and add up to that gap."""
    view = explain(make(2), make(4, seed=2))
    assert view.ledger.verdict is Verdict.NEUTRAL
    assert sum(cell.exact for cell in view.cells.all) == view.ledger.total.exact


def test_a_step_is_that_of_its_slowest_rank(make: Make) -> None:
    """2: the ranks are late in turns: no rank is named, and the row has their waits."""

    def longer(name: str, ns: np.ndarray) -> np.ndarray:
        ns = plant("forward", lambda step: 20.0 * (step % 2), (0,))(name, ns)
        return plant("forward", lambda step: 20.0 * ((step + 1) % 2), (1,))(name, ns)

    view = explain(make(2), make(2, seed=2, longer=longer))
    forward = sum(cell.ns for cell in view.cells.all if cell.row == "forward")
    assert forward * view.cells.step == pytest.approx(20e6, rel=0.15)


def test_a_long_copy_is_slow_only_for_its_bytes(make: Make) -> None:
    """11: ten times the bytes take ten times as long; nothing is wrong with the copy."""
    small = {"pin": True, "batch_elements": 1_000, "batch_shapes": "32x10"}
    large = {"pin": True, "batch_elements": 10_000, "batch_shapes": "32x100"}
    base = make(config=small)
    target = make(seed=2, config=large, phase_ns={"h2d": 5_000_000})
    (cause,) = explain(base, target).causes
    assert (cause.kind, "h2d" in cause.rows) == ("more_work", True)


def test_copies_from_pageable_memory_wait() -> None:
    """12: the batches of one run are not pinned, and its copies wait although nobody asks it."""
    names = ("recorded-h200-images", "recorded-h200-images-pageable")
    base, target = (Trace.open(TRACES / name) for name in names)
    view = explain(base, target)
    assert view.causes[0].kind == "unpinned_copy"
    assert view.told_cells[0].row == "h2d"


@pytest.mark.parametrize("metric", ["busy_percent", "nvlink_sent_bytes"])
def test_readings_of_a_device_explain_no_step(metric: str, make: Make) -> None:
    """13, 14, 15: they are of the whole device, and of all that uses it; no sentence names them."""
    told = []
    for value in (5.0, 100.0):
        target = make(2, seed=2, longer=plant("forward", lambda step: 5.0 + 0 * step))
        read = {
            "rank": pa.array([0] * 50, pa.int32()),
            "source": pa.array(["nvml"] * 50).dictionary_encode(),
            "device": pa.array(["cuda:0"] * 50).dictionary_encode(),
            "metric": pa.array([metric] * 50).dictionary_encode(),
            "time_ns": pa.array([BEGIN_NS + number * 100 * MS for number in range(50)]),
            "value": pa.array([value * number for number in range(50)]),
        }
        own = target.samples
        rows = pa.table({name: read[name] for name in own.column_names}, schema=own.schema)
        vars(target)["samples"] = pa.concat_tables([own, rows])
        told.append((gap_json(explain(make(2), target)), report_json(build_overview(target))))
        for data in told[-1]:
            del data["base" if "base" in data else "run"]
            data.pop("target", None)
    assert told[0] == told[1]


def test_a_line_that_was_not_sampled_has_an_interval(make: Make) -> None:
    """17: it may have taken a little, and nobody looked; its time is no sure zero."""
    runs = []
    for line in (1, 3):
        trace = make(1, seed=line, longer=plant("forward", lambda step: 1.0 + 0 * step))
        begin = trace.spans.filter(pc.equal(trace.spans["phase"], "forward"))
        times = begin["start_ns"].to_pylist()
        rows = [(time + 2 * MS, line if step % 2 else 2, "", None)
                for step, time in enumerate(times)]  # fmt: skip
        runs.append(set_samples(trace, rows))
    lines = gap_json(explain(runs[0], runs[1]))["lines"]
    (hook,) = [each for each in lines if each["function"] == "hook"]
    assert hook["base_ns_per_step"]["value"] == 0
    assert hook["base_ns_per_step"]["high"] > 0


def test_without_permission_the_times_remain(make: Make) -> None:
    """18: a system that forbids reading a process costs its lines alone."""
    trace = make(1, seed=3, longer=plant("forward", lambda step: 1.0 + 0 * step))
    before = report_json(build_overview(trace))
    folder = trace.path / "eye"
    folder.mkdir()
    (folder / "77.answer").write_text("the system forbids reading the job's memory (EPERM)")
    after = build_overview(Trace.open(trace.path))
    assert report_json(after)["phases"] == before["phases"]
    words = " ".join(report_text(after).split())
    assert "the system forbids reading the job's memory (EPERM)" in words


def test_an_attempt_without_effect_is_no_verdict_on_a_technique(make: Make) -> None:
    """25: what was tried, what would have been seen, and what to look at are said apart."""
    view = explain(make(config={"precision": "fp32"}), make(seed=2, config={"precision": "amp"}))
    assert view.ledger.verdict is Verdict.NEUTRAL
    assert view.ledger.smallest_seen
    (cause,) = view.causes
    assert (cause.kind, cause.cost_ns) == ("amp_without_effect", None)
    assert "no kernels were captured" in cause.evidence
    assert "see which of these it is" in cause.remedy
    headline = gap_json(view)["headline"]
    assert cause.kind not in headline
