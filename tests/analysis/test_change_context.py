"""What is said of a change: the late rank, other batches, the machine, a device's clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.analysis.change_context import add_context
from profkit.analysis.change_words import say_change, say_context
from profkit.analysis.overview import build_overview
from profkit.analysis.run_change import ChangeKind, RunChange
from profkit.analysis.run_changes import changes_of, find_changes
from profkit.analysis.run_halves import cut_at
from profkit.explain.explained import explain
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import including_batches, select_steps
from profkit.schema import open_schema
from profkit.testing.series import series_trace
from profkit.trace import Trace

MS, SECOND = 1_000_000, 1_000_000_000
STEPS, AT = 300, 150

Floats = npt.NDArray[np.float64]


def _forward(more_ms: float, *, until: int = STEPS, seed: int = 0) -> Floats:
    forward = 50 * MS * np.exp(0.02 * np.random.default_rng(seed).standard_normal(STEPS))
    forward[AT:until] += more_ms * MS
    return forward


def _trace(folder: Path, forward: Floats, allreduce: Floats | None = None) -> Trace:
    phases = {"data": np.full(STEPS, 5.0 * MS), "forward": forward}
    if allreduce is not None:
        phases["allreduce"] = allreduce
    return Trace.open(series_trace(folder, phases))


def _with_samples(trace: Trace, rows: list[tuple[str, str, str | None, int, float]]) -> Trace:
    """Return the run with these readings: source, metric, device, time and value."""
    columns = {
        "rank": [0] * len(rows),
        "source": [row[0] for row in rows],
        "metric": [row[1] for row in rows],
        "device": [row[2] for row in rows],
        "time_ns": [row[3] for row in rows],
        "value": [row[4] for row in rows],
    }
    schema = open_schema("samples")
    arrays = []
    for field in schema:
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        array = pa.array(columns[field.name], plain)
        arrays.append(array.cast(field.type) if plain == field.type else array.dictionary_encode())
    read = Trace.open(trace.path)
    table = pa.table(arrays, names=schema.names)
    environment = {**trace.manifest.environment, "cpu_count": 2}
    read = dataclasses.replace(
        read, manifest=dataclasses.replace(trace.manifest, environment=environment)
    )
    read.__dict__["samples"] = table
    return read


def _times(trace: Trace) -> list[tuple[int, bool]]:
    """Return a time in each second of the run, and whether the change has begun."""
    start, end = pc.min(trace.steps["start_ns"]).as_py(), pc.max(trace.steps["end_ns"]).as_py()
    begun = trace.steps.filter(pc.equal(trace.steps["step"], AT))["start_ns"][0].as_py()
    return [(each, each >= begun) for each in range(start, end, SECOND)]


def _changes(trace: Trace) -> tuple[RunChange, ...]:
    selection = frame_of(trace).selection
    return add_context(trace, find_changes(trace, selection.steps), selection)


def _machine(trace: Trace, *, others: float, waited: float) -> Trace:
    rows: list[tuple[str, str, str | None, int, float]] = []
    busy = own = wait = 0.0
    for time_ns, is_later in _times(trace):
        rows.append(("host", "cpu_busy_seconds", None, time_ns, busy))
        rows.append(("process", "cpu_seconds", None, time_ns, own))
        rows.append(("process", "cpu_wait_seconds", None, time_ns, wait))
        busy, own = busy + 0.9 + is_later * others, own + 0.9
        wait += 0.01 + is_later * waited
    return _with_samples(trace, rows)


def test_other_processes_are_named_if_the_job_waited_for_cores(tmp_path: Path) -> None:
    trace = _trace(tmp_path / "run", _forward(15))
    (change,) = _changes(_machine(trace, others=1.0, waited=0.2))
    assert change.machine is not None
    (words,) = say_context(change)
    assert "other processes used 0.90 instead of 0 cores" in words
    assert "the machine may be the reason" in words


@pytest.mark.parametrize(("others", "waited"), [(1.0, 0.0), (0.0, 0.2), (0.0, 0.0)])
def test_a_change_of_the_job_is_not_blamed_on_the_machine(
    others: float, waited: float, tmp_path: Path
) -> None:
    trace = _trace(tmp_path / "run", _forward(15))
    (change,) = _changes(_machine(trace, others=others, waited=waited))
    assert change.machine is None
    assert list(say_context(change)) == []


def test_without_readings_nothing_is_said_of_the_machine(tmp_path: Path) -> None:
    (change,) = _changes(_trace(tmp_path / "run", _forward(15)))
    assert (change.machine, change.clock) == (None, None)


@pytest.mark.parametrize(("after_mhz", "is_named"), [(1_080.0, True), (1_950.0, False)])
def test_a_slower_clock_is_named_with_its_reason(
    after_mhz: float, is_named: bool, tmp_path: Path
) -> None:
    trace = _trace(tmp_path / "run", _forward(15))
    rows: list[tuple[str, str, str | None, int, float]] = []
    for time_ns, is_later in _times(trace):
        clock = after_mhz if is_later else 1_980.0
        rows.append(("nvml", "sm_clock_mhz", "cuda:0", time_ns, clock))
        thermal = "throttled_by_software_thermal_ratio"
        rows.append(("nvml", thermal, "cuda:0", time_ns, float(is_later)))
    (change,) = _changes(_with_samples(trace, rows))
    assert (change.clock is not None) is is_named
    if is_named:
        assert list(say_context(change)) == [
            "the clock of rank 0's cuda:0 went from 1,980 to 1,080 MHz (software_thermal)"
        ]


def _of_rank(table: pa.Table, rank: int) -> pa.Table:
    place = table.schema.get_field_index("rank")
    column = pa.array([rank] * table.num_rows, table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column)


@pytest.mark.parametrize("is_late", [True, False])
def test_the_rank_that_the_others_wait_for_is_named(is_late: bool, tmp_path: Path) -> None:
    """The other rank's forward is as before, and it waits in the exchange."""
    slow, usual = _forward(12), _forward(0)
    waits = np.full(STEPS, 2.0 * MS)
    first = _trace(tmp_path / "first", usual, waits + slow - usual)
    second = _trace(tmp_path / "second", slow, waits)
    if not is_late:
        first = second
    steps = pa.concat_tables([first.steps, _of_rank(second.steps, 1)])
    spans = pa.concat_tables([first.spans, _of_rank(second.spans, 1)])
    (change,) = changes_of(steps, spans, np.arange(10, STEPS), rank=0, anchor=None)
    if not is_late:
        assert change.late is None
        return
    assert change.late is not None
    assert (change.late.rank, change.late.phase) == (1, "forward")
    assert change.late.later_ns == pytest.approx(12 * MS, rel=0.1)
    assert "rank 1 late in forward" in say_change(change)


@pytest.mark.parametrize(("before", "after"), [(16, 26), (24, 15)])
def test_a_change_of_the_batch_is_found_and_said(before: int, after: int, tmp_path: Path) -> None:
    trace = _trace(tmp_path / "run", _forward(20 if after > before else -15))
    sizes = pa.array(np.where(np.arange(STEPS) < AT, before, after))
    place = trace.steps.schema.get_field_index("sample_count")
    kind = trace.steps.schema.field(place)
    trace.__dict__["steps"] = trace.steps.set_column(place, kind, sizes.cast(kind.type))
    used = including_batches(select_steps(trace.steps, warm_up=10))
    assert len(used) == STEPS - 10
    (change,) = changes_of(trace.steps, trace.spans, used, rank=0, anchor=None)
    assert change.samples is not None
    assert change.samples == pytest.approx((before, after))
    assert f"{after} instead of {before} samples per step" in say_change(change)


def test_the_last_batch_of_an_epoch_is_no_change_of_the_batch(tmp_path: Path) -> None:
    trace = _trace(tmp_path / "run", _forward(0))
    sizes = pa.array(np.where(np.arange(STEPS) % 20 == 19, 5, 16))
    place = trace.steps.schema.get_field_index("sample_count")
    kind = trace.steps.schema.field(place)
    found = select_steps(trace.steps.set_column(place, kind, sizes.cast(kind.type)), warm_up=10)
    assert including_batches(found).tolist() == found.steps.tolist()


def test_a_burst_is_compared_until_its_end(tmp_path: Path) -> None:
    trace = _trace(tmp_path / "run", _forward(20, until=AT + 40))
    (change,) = build_overview(trace).changes
    before, after = cut_at(trace, change.first_step)
    assert "to 189" in after.name
    row = explain(before, after).ledger.find("forward")
    assert row is not None
    assert row.delta.value * 32 == pytest.approx(20 * MS, rel=0.1)


def test_a_change_is_compared_until_the_next_one(tmp_path: Path) -> None:
    forward = _forward(10)
    forward[AT + 60 :] += 100 * MS
    short = _trace(tmp_path / "short", forward)
    assert "to" not in cut_at(short, build_overview(short).changes[0].first_step)[1].name.split()
    forward *= 4
    trace = _trace(tmp_path / "run", forward)
    first, second = build_overview(trace).changes
    before, after = cut_at(trace, first.first_step)
    assert f"from step {first.first_step} to {second.first_step - 1}" in after.name
    row = explain(before, after).ledger.find("forward")
    assert row is not None
    assert row.delta.value * 32 == pytest.approx(40 * MS, rel=0.1)
    assert "on" in cut_at(trace, second.first_step)[1].name.split()


def _two_ranks(folder: Path, phases: list[dict[str, Floats]]) -> tuple[pa.Table, pa.Table]:
    """Return the steps and spans of two ranks with these phases."""
    first, second = (
        Trace.open(series_trace(folder / str(rank), own)) for rank, own in enumerate(phases)
    )
    steps = pa.concat_tables([first.steps, _of_rank(second.steps, 1)])
    return steps, pa.concat_tables([first.spans, _of_rank(second.spans, 1)])


def test_after_a_burst_nobody_is_blamed_for_what_the_burst_was(tmp_path: Path) -> None:
    """Rank 1's data is slow in a burst; later, the forward of both ranks becomes slower."""
    forward, data = _forward(10), np.full(STEPS, 5.0 * MS)
    late = data.copy()
    late[60:110] += 50 * MS
    phases = [{"data": data, "forward": forward, "allreduce": 2 * MS + late - data}]
    phases.append({"data": late, "forward": forward, "allreduce": np.full(STEPS, 2.0 * MS)})
    steps, spans = _two_ranks(tmp_path, phases)
    burst, change = changes_of(steps, spans, np.arange(10, STEPS), rank=0, anchor=None)
    assert burst.late is not None
    assert (burst.late.rank, burst.late.phase) == (1, "data")
    assert (change.first_step, change.late) == (AT, None)


def test_a_single_slow_step_makes_no_rank_late(tmp_path: Path) -> None:
    forward, data = _forward(12), np.full(STEPS, 5.0 * MS)
    once = data.copy()
    once[AT + 50] += 6_000 * MS
    phases = [{"data": data, "forward": forward, "allreduce": once - data + 2 * MS}]
    phases.append({"data": once, "forward": forward, "allreduce": data})
    steps, spans = _two_ranks(tmp_path, phases)
    (change,) = changes_of(steps, spans, np.arange(10, STEPS), rank=0, anchor=None)
    assert change.late is None


def _with_clock(trace: Trace, slow: tuple[int, int]) -> Trace:
    """Return the run with a device whose clock is slower in these steps."""
    rows: list[tuple[str, str, str | None, int, float]] = []
    for step in trace.steps.select(["step", "start_ns"]).to_pylist()[5::10]:
        clock = 1_080.0 if slow[0] <= step["step"] < slow[1] else 1_980.0
        rows.append(("nvml", "sm_clock_mhz", "cuda:0", step["start_ns"] + 1, clock))
    return _with_samples(trace, rows)


def test_the_clock_of_a_burst_is_not_that_before_the_next_change(tmp_path: Path) -> None:
    forward = _forward(-15)
    forward[60:110] += 40 * MS
    _, change = _changes(_with_clock(_trace(tmp_path / "run", forward), (60, 110)))
    assert (change.first_step, change.clock) == (AT, None)


@pytest.mark.parametrize("first", [AT - 4, AT + 4])
def test_regular_slow_steps_end_neither_side_of_a_change(first: int, tmp_path: Path) -> None:
    forward = _forward(15)
    forward[first::15] += 100 * MS
    changes = _changes(_with_clock(_trace(tmp_path / "run", forward), (AT, STEPS)))
    assert sorted(each.kind.value for each in changes) == ["periodic", "step"]
    for change in changes:
        assert (change.clock is not None) == (change.kind is ChangeKind.STEP)


def test_the_clock_while_the_job_does_something_else_explains_no_change(tmp_path: Path) -> None:
    """The device idles in an evaluation, which is no part of what the change compares."""
    forward = _forward(15)
    evaluations = (AT + 20, AT + 70)
    for step in evaluations:
        forward[step] += 20 * SECOND
    trace = _trace(tmp_path / "run", forward)
    rows: list[tuple[str, str, str | None, int, float]] = []
    for step in trace.steps.select(["step", "start_ns", "end_ns"]).to_pylist():
        is_idle = step["step"] in evaluations
        for time_ns in range(step["start_ns"] + 1, step["end_ns"], SECOND):
            clock = 300.0 if is_idle else 1_980.0
            rows.append(("nvml", "sm_clock_mhz", "cuda:0", time_ns, clock))
    (change,) = _changes(_with_samples(trace, rows))
    assert change.clock is None


@pytest.mark.parametrize(
    ("more_ms", "later", "reasons"),
    [(15, 0.5, ("power_cap",)), (15, 0.02, ()), (-15, 0.5, ())],
)
def test_what_throttles_a_device_hardly_more_is_no_reason(
    more_ms: float, later: float, reasons: tuple[str, ...], tmp_path: Path
) -> None:
    trace = _trace(tmp_path / "run", _forward(more_ms))
    rows: list[tuple[str, str, str | None, int, float]] = []
    for time_ns, is_later in _times(trace):
        clock = 1_500.0 - 30.0 * more_ms * (is_later - 0.5)
        rows.append(("nvml", "sm_clock_mhz", "cuda:0", time_ns, clock))
        share = later if is_later else 0.0
        rows.append(("nvml", "throttled_by_power_cap_ratio", "cuda:0", time_ns, share))
    (change,) = _changes(_with_samples(trace, rows))
    assert change.clock is not None
    assert change.clock.reasons == reasons


def test_what_is_compared_with_a_change_begins_after_the_burst_before_it(tmp_path: Path) -> None:
    data = np.full(STEPS, 5.0 * MS)
    data[60:110] += 50 * MS
    phases = {"data": data, "forward": _forward(10)}
    trace = Trace.open(series_trace(tmp_path / "run", phases))
    before, after = cut_at(trace, AT)
    assert (before.name, after.name) == ("run from step 110 to 149", "run from step 150 on")
    ledger = explain(before, after).ledger
    for row, by_ms in (("data", 0.0), ("forward", 10.0)):
        found = ledger.find(row)
        assert found is not None
        assert found.delta.value * 32 == pytest.approx(by_ms * MS, abs=0.5 * MS)
    assert cut_at(trace, 130)[0].name == "run before step 130"  # nothing changed there


@pytest.mark.parametrize(("steps", "is_named"), [(130, True), (40, False)])
def test_the_machine_is_no_reason_for_a_change_shorter_than_its_readings_show(
    steps: int, is_named: bool, tmp_path: Path
) -> None:
    """Readings are a second apart: those of a short burst are mostly of the steps around it."""
    trace = _trace(tmp_path / "run", _forward(15, until=AT + steps))
    change = _changes(_machine(trace, others=1.0, waited=0.2))[0]
    assert (change.kind, change.last_step) == (ChangeKind.BURST, AT + steps - 1)
    assert (change.machine is not None) is is_named


def test_what_is_compared_with_what_a_burst_left_ends_before_the_burst(tmp_path: Path) -> None:
    forward = _forward(50, until=AT + 40)
    forward[AT + 40 :] += 8 * MS
    trace = _trace(tmp_path / "run", forward)
    _, rest = _changes(trace)
    assert (rest.first_step, rest.before_steps) == (AT + 40, (10, AT - 1))
    before, after = cut_at(trace, rest.first_step)
    assert (before.name, after.name) == ("run from step 10 to 149", "run from step 190 on")
    row = explain(before, after).ledger.find("forward")
    assert row is not None
    assert row.delta.value * 32 == pytest.approx(8 * MS, rel=0.1)
