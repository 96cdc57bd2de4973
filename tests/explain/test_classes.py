"""Faults of classes that no rule was written for: the first answer has place and reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.stack_samples import Place
from profkit.explain.cell_samples import Chosen, Waits
from profkit.explain.evidence import Evidence, Loader
from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.explain.ledger import Verdict
from profkit.frame.run_frame import frame_of
from profkit.report.ledger_document import explained
from profkit.testing.synthetic_timeline import OUTSIDE
from profkit.trace import Trace
from tests.explain.conftest import MS, Make, Sample, plant, set_samples

BUSY = 8.0
"""Cores that others use, of 16."""


def _patch(monkeypatch: pytest.MonkeyPatch, name: str, values: Mapping[Any, Any]) -> None:
    """Give single runs another figure."""
    original = vars(Evidence)[name]

    def figure(evidence: Evidence) -> Any:
        for trace, value in values.items():
            if evidence.trace.path == trace:
                return value
        return original.func(evidence)

    monkeypatch.setattr(Evidence, name, property(figure))


def _headline(view: Explained) -> str:
    return explained(view).headline


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hook_that_sleeps_is_told_with_its_phase_and_that_it_sleeps(
    ranks: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make(ranks, seed=2, longer=plant("forward", lambda step: 30.0 + 0 * step))
    asleep = Load(16, 0.6 * ranks, 0.0, 1.0, 5.0, ranks=ranks)
    _patch(monkeypatch, "load", {target.path: asleep})
    view = explain(make(ranks), target)
    words = _headline(view)
    assert words.startswith("Regression: ")
    assert "in forward, in every step, asleep or blocked" in words
    assert view.ledger.verdict is Verdict.REGRESSION


def test_a_hook_that_is_gone_is_told_by_its_own_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both directions: the lines of the side that takes longer, less those of the other."""
    slow, quick = make(1, seed=2, longer=plant("forward", lambda step: 30.0 + 0 * step)), make(1)
    places = Place("", 0, ""), Place("job.py", 8, "slow_hook"), Place("job.py", 16, "main")

    class Sampled:
        waits = Waits(0.0, 0)

        def __init__(self, run: Evidence) -> None:
            self.run = run

        def select(self, phase: str, *_: object, **_more: object) -> Chosen:
            ns = frame_of(self.run.trace).means_of(0, self.run.used).get(phase, 0.0)
            is_slow = phase == "forward" and self.run.trace.path == slow.path
            hook_ns = 30.0 * MS if is_slow else 0.0
            weight = np.repeat([hook_ns, ns - hook_ns], 20)
            at = np.repeat([1, 2], 20)[weight > 0]
            return Chosen(places, ("",), at, np.zeros_like(at), weight[weight > 0], ns)

    monkeypatch.setattr("profkit.explain.cell_how._samples", Sampled)
    for sides, how in (((quick, slow), "computing "), ((slow, quick), "")):
        assert f"in forward, {how}at job.py:8 slow_hook" in _headline(explain(*sides))


def test_half_the_batch_is_the_reason_for_steps_that_take_as_long(make: Make) -> None:
    view = explain(make(1), make(1, seed=2, batch_size=16))
    cause = view.causes[0]
    assert (cause.kind, cause.is_gain) == ("more_work", False)
    assert "2.0 times as many" in cause.evidence
    assert view.ledger.verdict is Verdict.REGRESSION


def test_longer_samples_explain_computing_by_their_ratio(make: Make) -> None:
    known = {"batch_elements": 1_000, "batch_elements_error": 2.0}
    longer = {"batch_elements": 1_500, "batch_elements_error": 2.0}
    slower = {"forward": 18 * MS, "backward": 36 * MS}
    view = explain(make(1, config=known), make(1, seed=2, config=longer, phase_ns=slower))
    assert view.causes[0].kind == "more_work"
    assert "1.5 times as many" in view.causes[0].evidence


def _with_elements(trace: Trace, since: int) -> Trace:
    """Add readings of the batches' elements: one at the start, and twice as many from a step on."""
    steps = trace.steps.sort_by("step").to_pylist()
    times = [steps[0]["start_ns"], steps[since]["start_ns"]]
    added = pa.table(
        {
            "rank": pa.array([0, 0], pa.int32()),
            "source": pa.array(["loader"] * 2).dictionary_encode(),
            "metric": pa.array(["batch_elements"] * 2).dictionary_encode(),
            "time_ns": times,
            "value": [3_200.0, 6_400.0],
        }
    )
    vars(trace)["samples"] = pa.concat_tables([trace.samples, added], promote_options="permissive")
    return trace


def test_longer_samples_from_a_step_on_explain_what_is_longer_there(make: Make) -> None:
    since = plant("forward", lambda step: 20.0 * (step >= 120))
    slow = _with_elements(make(1, seed=2, longer=since), 120)
    quick = _with_elements(make(1, seed=3, longer=plant("forward", lambda step: 0 * step)), 199)
    view = explain(quick, slow)
    assert view.causes[0].kind == "more_work"
    assert "elements of a sample" in view.causes[0].evidence
    assert "1.4 times as many" in view.causes[0].evidence


def _with_calls(trace: Trace, op: str, count: int, length_ns: int) -> Trace:
    """Add collectives without gradients behind the last phase of each step."""
    rows = []
    for step in trace.steps.to_pylist():
        for call in range(count):
            end = step["end_ns"] - call * length_ns
            rows.append((step["rank"], step["step"], end - length_ns, end, call))
    own = trace.collectives
    added = {
        "rank": [row[0] for row in rows],
        "communicator": ["metrics"] * len(rows),
        "sequence": [row[1] * count + row[4] for row in rows],
        "op": [op] * len(rows),
        "bytes": [4] * len(rows),
        "dtype": ["float32"] * len(rows),
        "group_size": [2] * len(rows),
        "start_ns": [row[2] for row in rows],
        "end_ns": [row[3] for row in rows],
        "backend": ["gloo"] * len(rows),
        "step": [row[1] for row in rows],
    }
    columns = []
    for field in own.schema:
        values = added.get(field.name, [None] * len(rows))
        column = (
            pa.array(values, field.type.value_type) if pa.types.is_dictionary(field.type) else None
        )
        columns.append(pa.array(values, field.type) if column is None else column.cast(field.type))
    more = pa.table(columns, schema=own.schema)
    vars(trace)["collectives"] = pa.concat_tables([own, more]).unify_dictionaries()
    return trace


@pytest.mark.parametrize(("op", "count"), [("all_reduce", 60), ("barrier", 1)])
def test_collectives_that_were_added_are_counted_on_a_busy_host_too(
    op: str, count: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    added_ms = 12.0
    target = make(2, seed=2, others=BUSY, longer=plant(OUTSIDE, lambda step: added_ms + 0 * step))
    target = _with_calls(target, op, count, int(added_ms * MS / count))
    base = make(2, others=BUSY)
    busy = Load(16, 2.0, 0.0, 15.5, 90.0, ranks=2)
    _patch(monkeypatch, "load", {target.path: busy})
    view = explain(base, target)
    assert view.causes[0].kind == "more_collectives"
    assert f"{op} went from " in view.causes[0].evidence
    assert f"to {count}" in view.causes[0].evidence
    assert "host_busy" not in [cause.kind for cause in view.causes[:1]]


def test_ranks_that_share_one_core_are_told(make: Make) -> None:
    slower = {"forward": 24 * MS, "backward": 48 * MS}
    sides = []
    for cores, phases in ((2, {}), (1, slower)):
        trace = make(2, seed=cores, phase_ns=phases, steps=120)
        environment = {**trace.manifest.environment, "cpu_count": cores}
        vars(trace)["manifest"] = type(trace.manifest)(
            **{**vars(trace.manifest), "environment": environment}
        )
        sides.append(trace)
    view = explain(sides[0], sides[1])
    assert view.causes[0].kind == "few_cores"
    assert "1 core instead of 2" in view.causes[0].evidence


def test_a_sleep_after_the_update_is_no_busy_host_of_the_base(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base's host was busier, and nothing but the row itself grew."""
    base = make(2, others=2.0)
    target = make(2, seed=2, longer=plant(OUTSIDE, lambda step: 27.0 + 0 * step))
    loads = {
        base.path: Load(16, 2.0, 0.0, 15.5, 90.0, ranks=2),
        target.path: Load(16, 1.3, 0.0, 2.0, 5.0, ranks=2),
    }
    _patch(monkeypatch, "load", loads)
    view = explain(base, target)
    assert view.causes[0].kind == "time_outside_phases"
    assert "between optimizer and the step's end" in _headline(view)
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    for cause in view.causes:
        assert cause.cost_ns is None or cause.is_gain or cause.cost_ns.value <= 1.1 * gap_ns


def test_a_piece_that_takes_48_times_as_long_is_certain_on_any_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make(1, others=BUSY)
    target = make(1, seed=2, others=BUSY, longer=plant("data", lambda step: 90.0 + 0 * step))
    loaders = {
        base.path: Loader({"read": 1.0 * MS, "collate": 4.6 * MS}, workers=2),
        target.path: Loader({"read": 1.0 * MS, "collate": 222.0 * MS}, workers=2),
    }
    _patch(monkeypatch, "loader", loaders)
    view = explain(base, target)
    assert view.ledger.verdict is Verdict.REGRESSION
    assert (view.causes[0].kind, view.causes[0].detail) == ("input_bound", "collate")
    assert "collate of a batch" in _headline(view)


def _sample_workers(trace: Trace, place: int, state: str, call: str | None) -> None:
    """Give a run samples of a worker, each 10 ms, at a place of `SCRIPT`."""
    rows: list[Sample] = []
    for row in trace.steps.select(["start_ns", "end_ns"]).to_pylist():
        for at in np.arange(row["start_ns"], row["end_ns"], 10 * MS):
            rows.append((int(at), place, state, call))
    set_samples(trace, rows)
    vars(trace)["worker_stacks"] = vars(trace).pop("stacks")


@pytest.mark.parametrize("is_gain", [False, True])
def test_a_longer_wait_for_workers_is_at_their_line_in_every_step(
    is_gain: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers hand out two batches at once, so the loop waits in every second step."""
    base = make(1)
    target = make(1, seed=2, longer=plant("data", lambda step: 120.0 * (step % 2)))
    loaders = {
        base.path: Loader({"read": 1.0 * MS}, workers=2),
        target.path: Loader({"read": 100.0 * MS}, workers=2),
    }
    _patch(monkeypatch, "loader", loaders)
    _sample_workers(base, 1, "R", None)
    _sample_workers(target, 3, "S", "clock_nanosleep")
    view = explain(*((target, base) if is_gain else (base, target)))
    words = _headline(view)
    assert "sleeping at train.py:97 hook in the loader's workers" in words
    assert "in every step" in words
    assert "2nd" not in words


def test_uneven_lengths_are_certain_because_elements_are_counted(make: Make) -> None:
    longer = plant("forward", lambda step: 25.0 + 0 * step, (1,))
    base, target = make(2, others=BUSY), make(2, seed=2, others=BUSY, longer=longer)
    for trace, lengths in ((base, (100, 100)), (target, (100, 160))):
        for rank, length in zip(trace.ranks, lengths, strict=True):
            config = {**rank.manifest.config, "batch_shapes": f"32x{length}, 32"}
            vars(rank)["manifest"] = type(rank.manifest)(
                **{**vars(rank.manifest), "config": config}
            )
    view = explain(base, target)
    assert view.causes[0].kind == "uneven_lengths"
    assert view.ledger.verdict is Verdict.REGRESSION


def test_no_answer_ends_without_a_cause_where_there_is_evidence(make: Make) -> None:
    for phase in ("data", "forward", "optimizer", OUTSIDE):
        view = explain(make(2), make(2, seed=2, longer=plant(phase, lambda step: 20.0 + 0 * step)))
        (section,) = [each for each in explained(view).sections if each.key == "causes"]
        said = " ".join([*section.notes, section.ending, *(cause.kind for cause in section.causes)])
        assert said
        assert "o cause" not in said


def test_an_unsteady_machine_makes_no_pattern(make: Make) -> None:
    """Noise of a quarter of the step on both sides, and no cell is told."""
    random = np.random.default_rng(3)

    def noisy(name: str, ns: Any) -> Any:
        return (ns * np.exp(0.25 * random.standard_normal(ns.shape))).astype(np.int64)

    view = explain(make(2, longer=noisy), make(2, seed=2, longer=noisy))
    assert [cell for cell in view.told_cells if cell.is_counted or cell.ranks] == []
