"""Each rule names its cause if it was planted, with its cost.

It names nothing if only a sign of the cause, or only a longer time, is present.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.analysis.machine_state import MachineState
from profkit.analysis.trend import find_trend
from profkit.explain.claims import find_all
from profkit.explain.evidence import Evidence, Exchanges, Loader
from profkit.explain.evidence_counters import Counters, Load
from profkit.explain.evidence_kernels import Windows
from profkit.explain.explained import explain
from profkit.explain.rules import (
    amp_without_effect,
    bad_samples,
    garbage_pauses,
    more_collectives,
    skipped_amp_steps,
    worker_start,
)
from profkit.explain.rules._calls import Calls, count_calls
from profkit.explain.rules.base import Case, Cause, Specific, compute_row
from profkit.explain.slowness import state_of
from profkit.explain.turned import find_gains
from profkit.frame.estimate import Estimate
from profkit.plugins import RULES
from profkit.testing import synthetic, synthetic_trace
from profkit.trace import Trace

MS = 1_000_000

FIGURES: Mapping[str, Callable[[Evidence], object]] = {
    "saw_autocast": amp_without_effect.saw_autocast,
    "bad_samples": bad_samples.count_bad_samples,
    "garbage_ns": garbage_pauses.garbage_ns,
    "others_by_op": more_collectives.others_by_op,
    "skipped_share": skipped_amp_steps.skipped_share,
    "epoch_start_ns": worker_start.epoch_start_ns,
    "calls": count_calls,
    "state_of": state_of,
}
"""The figures that only one rule computes; all others are attributes of the evidence."""

RANKS = {"ranks": 2}
KEPT = "persistent_workers"

IDLE = Load(cores=8, own=1.0, workers=1.0, machine=2.5, switches_per_s=5.0)
WORKERS = Loader({"read": 1.0 * MS, "decode": 8.0 * MS, "collate": 0.5 * MS}, workers=4)
BUCKETS = Exchanges(messages=4, message_bytes=25e6, buckets=4)
ON_GPU = Windows(
    calls=500,
    busy_ns=30.0 * MS,
    by_category={"gemm": 25.0 * MS, "elementwise": 5.0 * MS},
    calls_by_category={"gemm": 100, "elementwise": 400},
    calls_by_phase={"forward": 200, "backward": 280, "optimizer": 20},
    pageable_share=0.0,
    tensor_core_share=0.9,
    launched_late_share=0.01,
    on_host=False,
)
SLOWER = {"phase_ns": {"forward": 16 * MS, "backward": 32 * MS, "optimizer": 5 * MS}}
"""All that a rank computes takes a third longer, 13 ms together."""


@dataclass(frozen=True)
class Planted:
    """A cause: the target's change, both sides' records, and the cost per step in ms."""

    cost_ms: float
    target: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    is_cost_of_the_sign: bool = False
    """Whether the sign itself says what it costs, so that no row needs to grow."""


def _windows(**changes: Any) -> Windows:
    return replace(ON_GPU, **changes)


PLANTED = {
    "loader_contention": Planted(
        13, SLOWER, {"load": IDLE}, {"load": Load(8, 1.0, 6.5, 8.0, 300.0)}
    ),
    "thread_oversubscription": Planted(
        13, SLOWER, {"load": IDLE}, {"load": Load(8, 6.5, 1.0, 8.0, 900.0)}
    ),
    "interpreter_lock": Planted(
        13,
        SLOWER,
        {"load": replace(IDLE, python_threads=0.0)},
        {"load": replace(IDLE, own=1.4, python_threads=0.6, switches_per_s=640.0, runnable=9.5)},
    ),
    "host_busy": Planted(13, SLOWER, {"load": IDLE}, {"load": Load(8, 1.0, 1.0, 7.9, 40.0)}),
    "worker_start": Planted(
        4,
        {},
        {"loader": WORKERS},
        {"loader": WORKERS, "epoch_start_ns": Estimate(4.5 * MS, 4.2 * MS, 4.8 * MS)},
        is_cost_of_the_sign=True,
    ),
    "unpinned_copy": Planted(
        3.5,
        {"phase_ns": {"h2d": 4 * MS}},
        {"windows": ON_GPU},
        {"windows": _windows(pageable_share=1.0)},
    ),
    "tiny_buckets": Planted(
        6,
        {"phase_ns": {"allreduce": 9 * MS}},
        {"exchanges": BUCKETS},
        {"exchanges": Exchanges(40, 2.5e6, 40)},
        RANKS,
    ),
    "huge_bucket": Planted(
        6,
        {"phase_ns": {"allreduce": 9 * MS}},
        {"exchanges": BUCKETS},
        {"exchanges": Exchanges(1, 100e6, 1)},
        RANKS,
    ),
    "accumulation_without_no_sync": Planted(
        6,
        {"phase_ns": {"allreduce": 9 * MS}},
        {"exchanges": BUCKETS},
        {"exchanges": Exchanges(16, 25e6, 4)},
        RANKS,
    ),
    "more_collectives": Planted(
        8,
        {"phase_ns": {"forward": 20 * MS}},
        {"exchanges": BUCKETS, "others_by_op": {}},
        {"exchanges": BUCKETS, "others_by_op": {"all_reduce": (53.0, 8.0 * MS)}},
        RANKS,
    ),
    "launch_bound": Planted(
        13, SLOWER, {"windows": ON_GPU}, {"windows": _windows(calls=2_000, busy_ns=36.0 * MS)}
    ),
    "layout_copies": Planted(
        13,
        SLOWER,
        {"windows": ON_GPU},
        {
            "windows": _windows(
                by_category={**ON_GPU.by_category, "layout": 9.0 * MS},
                calls_by_category={**ON_GPU.calls_by_category, "layout": 32},
            )
        },
    ),
    "sync_stalls": Planted(
        13,
        SLOWER,
        {"windows": ON_GPU},
        {"windows": _windows(calls_by_category={**ON_GPU.calls_by_category, "copy to host": 8})},
    ),
    "amp_without_effect": Planted(
        13,
        SLOWER,
        {"saw_autocast": False},
        {"saw_autocast": True, "windows": _windows(tensor_core_share=0.1)},
    ),
    "optimizer_unfused": Planted(
        6,
        {"phase_ns": {"optimizer": 10 * MS}},
        {"windows": ON_GPU},
        {"windows": _windows(calls_by_phase={**ON_GPU.calls_by_phase, "optimizer": 900})},
    ),
    "garbage_pauses": Planted(
        3,
        {},
        {"garbage_ns": Estimate(0.1 * MS, 0.05 * MS, 0.15 * MS)},
        {"garbage_ns": Estimate(3.1 * MS, 2.5 * MS, 3.7 * MS)},
        is_cost_of_the_sign=True,
    ),
    "skipped_amp_steps": Planted(
        11, {}, {"skipped_share": 0.0}, {"skipped_share": 0.25}, is_cost_of_the_sign=True
    ),
    "more_calls": Planted(
        36,
        {"phase_ns": {"forward": 24 * MS, "backward": 48 * MS}},
        {"calls": {"forward": Calls(4, 0.0), "backward": Calls(4, 0.0)}},
        {"calls": {"forward": Calls(8, 0.0), "backward": Calls(8, 0.0)}},
    ),
    "bad_samples": Planted(8, {"phase_ns": {"data": 10 * MS}}, {}, {"bad_samples": 12}),
}

FREE_OF_COST = frozenset({"amp_without_effect", "bad_samples", "more_collectives"})
"""Kinds that are told also where they cost nothing."""

Make = Callable[[Planted], Case]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Two synthetic runs that recorded what a test says; each run is written once."""
    folder = tmp_path_factory.mktemp("runs")
    runs: dict[str, Trace] = {}
    cases: dict[str, Case] = {}

    def open_run(**options: Any) -> Trace:
        name = str(sorted(options.items()))
        if name not in runs:
            runs[name] = Trace.open(synthetic_trace(folder / str(len(runs)), steps=120, **options))
        return runs[name]

    def make_case(planted: Planted) -> Case:
        name = str((planted.base, planted.target))
        if name not in cases:
            cases[name] = explain(
                open_run(seed=1, **planted.base),
                open_run(seed=2, **{**planted.base, **planted.target}),
            ).case
        before, after = (
            Evidence(side.trace, side.costs) for side in (cases[name].before, cases[name].after)
        )
        for evidence, facts in ((before, planted.before), (after, planted.after)):
            if "load" in facts:  # the machine of the synthetic run is another one
                evidence.figures[state_of] = None
            for figure, value in facts.items():
                if figure in FIGURES:
                    evidence.figures[FIGURES[figure]] = value
                else:
                    assert hasattr(Evidence, figure), f"add {figure} to FIGURES"
                    vars(evidence)[figure] = value
        return replace(cases[name], before=before, after=after)

    return make_case


def _ask(name: str, case: Case) -> Cause | None:
    cause: Cause | None = RULES.load(name)(case)
    return cause


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_named_with_its_cost(name: str, make: Make) -> None:
    planted = PLANTED[name]
    cause = _ask(name, make(planted))
    assert cause is not None
    assert cause.kind == name
    assert cause.evidence
    assert cause.remedy
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(planted.cost_ms * MS, rel=0.15)


@pytest.mark.parametrize(
    "name", [name for name, planted in PLANTED.items() if not planted.is_cost_of_the_sign]
)
def test_nothing_is_said_where_the_time_grew_without_the_causes_sign(name: str, make: Make) -> None:
    planted = PLANTED[name]
    nothing: dict[str, Any] = {**planted.before, "skipped_share": 0.0}
    assert _ask(name, make(replace(planted, after=nothing))) is None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, planted in PLANTED.items()
        if not planted.is_cost_of_the_sign and name not in FREE_OF_COST
    ],
)
def test_nothing_is_said_where_the_sign_costs_nothing(name: str, make: Make) -> None:
    assert _ask(name, make(replace(PLANTED[name], target={}))) is None


@pytest.mark.parametrize(
    "name", [name for name, planted in PLANTED.items() if planted.is_cost_of_the_sign]
)
def test_nothing_is_said_where_the_base_does_as_much(name: str, make: Make) -> None:
    planted = PLANTED[name]
    assert _ask(name, make(replace(planted, before=planted.after))) is None


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_is_the_first_that_is_told(name: str, make: Make) -> None:
    """The planted cause is the first one, after costs that other causes explain are removed."""
    planted = PLANTED[name]
    found = find_all(make(planted), [RULES.load(each) for each in RULES.names()])
    assert found[0].kind == name, [(each.kind, each.cost_ns) for each in found]
    assert sum(each.cost_ns is not None for each in found) == 1, [
        (each.kind, each.cost_ns) for each in found
    ]


@pytest.mark.parametrize("name", PLANTED)
def test_a_cause_that_the_target_lacks_is_named_as_a_gain(name: str, make: Make) -> None:
    planted = PLANTED[name]
    healed = Planted(
        planted.cost_ms,
        target={option: {} for option in planted.target},
        before=planted.after,
        after=planted.before,
        base={**planted.base, **planted.target},
    )
    rules = [RULES.load(each) for each in RULES.names()]
    case = make(healed)
    gains = list(find_gains(case, rules))
    if name == "skipped_amp_steps":  # costs no time of a step, and has no interval
        assert not gains
        return
    assert [each.kind for each in gains] == [name], gains
    (gain,) = gains
    assert gain.is_gain
    assert not gain.remedy
    assert gain.cost_ns is not None
    assert gain.cost_ns.value == pytest.approx(planted.cost_ms * MS, rel=0.15)
    for was, now in re.findall(r"went from ([\d.]+) ms to ([\d.]+) ms per step", gain.evidence):
        assert float(was) >= float(now), gain.evidence
    if planted.is_cost_of_the_sign:
        assert "in the base, " in gain.evidence
    assert [each for each in find_all(case, rules) if each.cost_ns is not None] == []


@pytest.mark.parametrize(
    ("own", "switches", "named"), [(0.7, 5.0, False), (0.7, 60.0, True), (1.0, 5.0, True)]
)
def test_a_busy_host_holds_up_threads_that_want_to_run(
    own: float, switches: float, named: bool, make: Make
) -> None:
    """Ranks that neither lose a core more often nor work longer wait for something else."""
    load = Load(8, own, 1.0, 7.9, switches)
    cause = _ask("host_busy", make(Planted(13, SLOWER, {"load": IDLE}, {"load": load})))
    assert (cause is not None) is named


OTHERS = Load(8, 1.0, 1.0, 7.9, 40.0)
"""Other processes fill the machine, and take the cores from the ranks."""


@pytest.mark.parametrize(
    ("knob", "values"),
    [("precision", ("fp32", "fp64")), ("model", ("a", "b"))],
)
def test_work_that_the_job_added_is_no_contention(
    knob: str, values: tuple[Any, Any], make: Make
) -> None:
    """The ranks' processor time went with the step, so what they compute made it longer."""
    base, target = ({"config": {knob: value, "batch_elements_error": 9.0}} for value in values)
    busy_load = replace(OTHERS, own=0.9)
    case = make(Planted(13, {**SLOWER, **target}, {"load": IDLE}, {"load": busy_load}, base))
    row = compute_row(case.ledger)
    own_ns = row.base.value * (0.9 * case.after.step_ns / case.before.step_ns - 1)
    own_ns *= case.ledger.samples_per_step
    assert own_ns > 6 * MS
    found = find_all(case, [RULES.load(each) for each in RULES.names()])
    costs = {each.kind: each.cost_ns.value for each in found if each.cost_ns}
    assert costs == pytest.approx(
        {"setting_changed": own_ns, "host_busy": 13 * MS - own_ns}, rel=0.15
    )
    busy = next(each for each in found if each.kind == "host_busy")
    assert "of it are the job's own: its processor time went from" in busy.evidence


def test_a_longer_step_of_the_same_work_is_contention_however_long_its_threads_ran(
    make: Make,
) -> None:
    """Threads that share a core's units use more processor time for the same work."""
    cause = _ask("host_busy", make(Planted(13, SLOWER, {"load": IDLE}, {"load": OTHERS})))
    assert cause is not None
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(13 * MS, rel=0.15)
    assert "the job's own" not in cause.evidence


@pytest.mark.parametrize(("waited", "most_ms"), [(0.3, 13.0), (0.02, 6.0), (0.0, 0.0)])
def test_others_cost_no_more_than_threads_waited_for_them(
    waited: float, most_ms: float, make: Make
) -> None:
    """A pause of the job on a machine that became busier is not the machine's."""
    before, after = MachineState(8, 0.5, 0.0), MachineState(8, 0.9, waited)
    load = replace(OTHERS, machine=7.9)
    case = make(
        Planted(13, SLOWER, {"load": IDLE, "state_of": before}, {"load": load, "state_of": after})
    )
    cause = _ask("host_busy", case)
    cost_ms = 0.0
    if cause is not None:
        assert cause.cost_ns is not None
        assert cause.needs_processor
        cost_ms = cause.cost_ns.value / MS
    waits_ms = waited * case.after.step_ns / MS
    shared_ms = 0.9 / 8 * compute_row(case.ledger).base.value * case.ledger.samples_per_step / MS
    assert cost_ms == pytest.approx(min(13.0, waits_ms + shared_ms), rel=0.15)
    assert cost_ms <= most_ms + shared_ms


@pytest.mark.parametrize(("threads", "named"), [((8.0, 8.0), False), ((8.0, 9.0), True)])
def test_as_many_threads_as_before_are_not_too_many(
    threads: tuple[float, float], named: bool, make: Make
) -> None:
    few = replace(IDLE, threads=threads[0])
    many = Load(8, 6.5, 1.0, 8.0, 900.0, threads=threads[1])
    case = make(Planted(13, SLOWER, {"load": few}, {"load": many}))
    assert (_ask("thread_oversubscription", case) is not None) is named


@pytest.mark.parametrize(("collate_ms", "named"), [(20.0, True), (0.8, False)])
def test_a_piece_that_grew_out_of_proportion_is_slow_on_a_busy_machine_as_well(
    collate_ms: float, named: bool, make: Make
) -> None:
    """A lack of cores makes collating as much longer as computing, and not forty times."""
    longer = Loader({**WORKERS.pieces, "collate": collate_ms * MS}, workers=4)
    busy = Load(8, 1.0, 1.0, 7.9, 40.0)
    planted = Planted(
        0,
        {"phase_ns": {"data": 20 * MS}},
        {"loader": WORKERS, "load": busy},
        {"loader": longer, "load": busy},
    )
    assert (_ask("input_bound", make(planted)) is not None) is named


def test_mixed_precision_that_helps_is_no_cause(make: Make) -> None:
    faster = {"phase_ns": {"forward": 6 * MS, "backward": 12 * MS}}
    assert (
        _ask(
            "amp_without_effect",
            make(Planted(0, faster, {"saw_autocast": False}, {"saw_autocast": True})),
        )
        is None
    )
    idle = _ask(
        "amp_without_effect", make(Planted(0, {}, {"saw_autocast": False}, {"saw_autocast": True}))
    )
    assert idle is not None
    assert idle.cost_ns is None


def test_mixed_precision_without_effect_is_told_where_its_cost_is_not_sure(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make(Planted(13, SLOWER, {"saw_autocast": False}, {"saw_autocast": True}))
    row = compute_row(case.ledger)
    wide = replace(
        row, delta=Estimate(row.delta.value, 0.01 * row.delta.value, 2 * row.delta.value)
    )
    monkeypatch.setattr(amp_without_effect, "compute_row", lambda _: wide)
    told = find_all(case, [RULES.load("amp_without_effect")])
    assert [(each.kind, each.cost_ns) for each in told] == [("amp_without_effect", None)]


def _costly(kind: str, ms: float, specific: Specific, *rows: str) -> Cause:
    cost = Estimate(ms * MS, (ms - 0.5) * MS, (ms + 0.5) * MS)
    return Cause(kind, cost, None, "", specific=specific, rows=rows)


def _told(cause: Cause, case: Case) -> Cause:
    return cause


def _costs(case: Case, *causes: Cause) -> dict[str, float]:
    found = find_all(case, [functools.partial(_told, cause) for cause in causes])
    return {each.kind: round(each.cost_ns.value / MS, 1) for each in found if each.cost_ns}


def test_the_more_specific_cause_has_what_both_are_about(make: Make) -> None:
    """Computing takes 13 ms longer in all, 8 ms of them in backward."""
    case = make(Planted(0, SLOWER))
    machine = _costly("a", 8, Specific.MACHINE, "backward")
    assert _costs(case, machine, _costly("b", 3, Specific.COUNT, "backward"))["a"] == pytest.approx(
        5, abs=0.3
    )
    assert "a" not in _costs(case, machine, _costly("b", 7, Specific.COUNT, "backward"))
    assert _costs(case, machine, _costly("b", 3, Specific.SETTING, "backward"))[
        "a"
    ] == pytest.approx(8, abs=0.3)
    assert _costs(case, machine, _costly("b", 4, Specific.COUNT, "forward"))["a"] == pytest.approx(
        8, abs=0.3
    )


def test_a_cause_costs_no_more_than_its_cells(make: Make) -> None:
    case = make(Planted(0, SLOWER))
    found = _costs(case, _costly("a", 12, Specific.MACHINE, "backward"))
    assert found["a"] == pytest.approx(8, abs=0.5)
    assert "a" not in _costs(case, _costly("a", 40, Specific.MACHINE, "backward"))


def test_all_causes_together_cost_no_more_than_the_cells(make: Make) -> None:
    case = make(Planted(0, SLOWER))
    kinds = [_costly(str(each), 9, Specific(each), "forward", "backward") for each in range(1, 9)]
    cells_ns = sum(max(0.0, cell.ns) for cell in case.cells.all) * case.ledger.samples_per_step
    assert sum(_costs(case, *kinds).values()) <= cells_ns / MS + 0.1


def test_a_busy_host_makes_no_sleep(make: Make) -> None:
    case = make(Planted(0, SLOWER))
    asleep = [replace(cell, is_blocked=True) for cell in case.cells.all]
    case = replace(case, cells=replace(case.cells, all=tuple(asleep)))
    busy = replace(_costly("a", 8, Specific.MACHINE, "backward"), needs_processor=True)
    assert "a" not in _costs(case, busy)
    assert _costs(case, replace(busy, needs_processor=False))["a"] == pytest.approx(8, abs=0.3)


def test_a_rank_that_is_late_costs_the_whole_step(make: Make) -> None:
    """One of two ranks takes 8 ms longer.

    On average over both, half of that is its own work and half is the other's wait.
    """
    for phase in ("data", "forward", "backward"):
        late = {1: {phase: synthetic.MEAN_PHASE_NS[phase] + 8 * MS}}
        case = make(Planted(0, {"rank_phase_ns": late}, base=RANKS))
        first, *others = find_all(case, [RULES.load(each) for each in RULES.names()])
        assert (first.kind, first.detail) == ("late_rank", phase)
        assert first.cost_ns is not None
        assert first.cost_ns.value == pytest.approx(8 * MS, rel=0.15)
        assert all(each.cost_ns is None for each in others), others


def _drifting(path: Path, seed: int, added_ns: int) -> Trace:
    """A run whose steps become longer, by so much from the first to the last."""
    trace = Trace.open(synthetic_trace(path, steps=200, seed=seed, steps_per_epoch=0))
    steps = trace.steps
    longer = np.cumsum(np.linspace(0, added_ns, steps.num_rows).astype(np.int64))
    start, end = (
        steps["start_ns"].to_numpy() + np.concatenate([[0], longer[:-1]]),
        steps["end_ns"].to_numpy() + longer,
    )
    for name, values in (("start_ns", start), ("end_ns", end)):
        steps = steps.set_column(steps.schema.get_field_index(name), name, pa.array(values))
    vars(trace)["steps"] = steps
    return trace


@pytest.mark.parametrize("added_ns", [0, 16 * MS])
def test_a_row_drifts_in_steps_that_vary_for_another_reason(tmp_path: Path, added_ns: int) -> None:
    """The steps of a busy machine vary by more than a part of them grows."""
    base, target = (_drifting(tmp_path / name, 1, 0) for name in "ab")
    costs = explain(base, target).case.after.costs
    steps = costs.steps
    noise_ns = 60 * MS * np.sin(np.arange(steps) / 9.0) ** 2
    rising_ns = np.linspace(1 * MS, 1 * MS + added_ns, steps)
    parts = {**costs.parts, "forward": rising_ns * costs.ranks, "backward": noise_ns}
    wall_ns = costs.wall_ns + (noise_ns + rising_ns) * costs.ranks
    noisy = replace(costs, parts=parts, wall_ns=wall_ns.astype(np.int64))
    whole, part = find_trend(noisy), find_trend(noisy, "forward")
    assert whole is not None
    assert not whole.rises
    assert part is not None
    assert part.rises == bool(added_ns)


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        (WORKERS, replace(WORKERS, pieces={**WORKERS.pieces, "read": 40.0 * MS}), "read"),
        (WORKERS, replace(WORKERS, pieces={**WORKERS.pieces, "decode": 48.0 * MS}), "decode"),
        (WORKERS, replace(WORKERS, workers=0), "no workers"),
        (WORKERS, replace(WORKERS, workers=1), ""),
        (None, None, ""),
    ],
)
def test_a_slow_input_says_what_of_it_is_slow(
    before: Loader | None, after: Loader | None, detail: str, make: Make
) -> None:
    cause = _ask(
        "input_bound",
        make(Planted(0, {"phase_ns": {"data": 12 * MS}}, {"loader": before}, {"loader": after})),
    )
    assert cause is not None
    assert cause.detail == detail
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(10 * MS, rel=0.15)


@pytest.mark.parametrize(
    ("piece", "workers", "said"),
    [
        ("decode", (4, 4), "the processor time of the loader's workers"),
        ("decode", (0, 0), "the processor time of the training process"),
        ("decode", (0, 2), "the processor time of the training process, then the loader's workers"),
        ("read", (4, 4), "the time that waits, as for files, blocked the loader's workers"),
        (
            "read",
            (0, 0),
            "the time that waits, as for files or a core, blocked the training process",
        ),
        ("collate", (4, 4), "the time in collate_fn of the loader's workers"),
    ],
)
def test_a_slow_input_says_which_time_of_which_process_is_longer(
    piece: str, workers: tuple[int, int], said: str, make: Make
) -> None:
    before = replace(WORKERS, workers=workers[0])
    after = replace(WORKERS, workers=workers[1], pieces={**WORKERS.pieces, piece: 48.0 * MS})
    slow = {"phase_ns": {"data": 12 * MS}}
    case = make(Planted(0, slow, {"loader": before}, {"loader": after}))
    cause = _ask("input_bound", case)
    assert cause is not None
    assert f"to 48.0 ms per step, {said}" in cause.evidence


@pytest.mark.parametrize(
    ("before", "after", "in_thread", "evidence", "remedy"),
    [
        (4, 4, False, "the loader's workers", "use more workers (num_workers), or"),
        (0, 0, False, "the training process", "use workers (num_workers above 0)"),
        (4, 0, False, "the loop makes the batches itself", "the loop makes each batch itself"),
        (0, 0, True, "a thread of the training process", "a thread makes each batch"),
        (4, 0, True, "a thread of the training process makes", "a thread makes each batch"),
    ],
)
def test_the_remedy_of_a_slow_input_fits_the_makers_of_the_batches(
    before: int, after: int, in_thread: bool, evidence: str, remedy: str, make: Make
) -> None:
    """Paddle's loader makes batches in a thread if it has no workers."""
    slow = {**WORKERS.pieces, "decode": 48.0 * MS}
    first = replace(WORKERS, workers=before, in_thread=in_thread and not before)
    then = replace(WORKERS, workers=after, in_thread=in_thread, pieces=slow)
    target = {"phase_ns": {"data": 12 * MS}}
    cause = _ask("input_bound", make(Planted(0, target, {"loader": first}, {"loader": then})))
    assert cause is not None
    assert evidence in cause.evidence
    assert remedy in cause.remedy
    assert ("the loop makes" in cause.evidence + cause.remedy) == (not after and not in_thread)
    assert "--" not in cause.remedy, "these are options of reference systems"


@pytest.mark.parametrize(("kept", "advised"), [(None, True), (False, True), (True, False)])
def test_workers_that_are_kept_over_epochs_are_not_to_be_kept(
    kept: bool | None, advised: bool, make: Make
) -> None:
    plain = PLANTED["worker_start"]
    cause = _ask("worker_start", make(replace(plain, target={"config": {KEPT: kept}})))
    assert cause is not None
    assert (f"{KEPT}=True" in cause.remedy) == advised
    assert advised or "kept already" in cause.remedy


@pytest.mark.parametrize(
    ("thread", "expected"),
    [("loader worker 1", (1, False)), ("loader thread", (0, True)), ("MainThread", (0, False))],
)
def test_the_names_of_threads_say_who_makes_the_batches(
    thread: str, expected: tuple[int, bool], tmp_path: Path
) -> None:
    trace = Trace.open(synthetic_trace(tmp_path / "run"))
    spans = trace.spans
    made = spans.filter(pc.equal(spans["phase"].cast("string"), "data"))
    for name, value in (("name", "decode"), ("thread", thread)):
        column = pa.array([value] * made.num_rows).cast(pa.dictionary(pa.int32(), pa.string()))
        made = made.set_column(made.schema.get_field_index(name), name, column)
    vars(trace)["spans"] = made
    loader = Evidence(trace).loader
    assert loader is not None
    assert (loader.workers, loader.in_thread) == expected


def test_an_input_that_others_crowd_out_is_not_its_own_fault(make: Make) -> None:
    """Batches are as much work as before, and something else has the processors.

    Nothing says what would help the loader.
    """
    crowded = Load(8, 1.0, 1.0, 7.9, 40.0)
    slow = {"phase_ns": {"data": 12 * MS}}
    assert (
        _ask(
            "input_bound",
            make(
                Planted(
                    0, slow, {"loader": WORKERS, "load": IDLE}, {"loader": WORKERS, "load": crowded}
                )
            ),
        )
        is None
    )
    decode = replace(WORKERS, pieces={**WORKERS.pieces, "decode": 48.0 * MS})
    assert (
        _ask(
            "input_bound",
            make(
                Planted(
                    0, slow, {"loader": WORKERS, "load": IDLE}, {"loader": decode, "load": crowded}
                )
            ),
        )
        is not None
    )
    busy = _ask(
        "host_busy",
        make(
            Planted(
                0, slow, {"loader": WORKERS, "load": IDLE}, {"loader": WORKERS, "load": crowded}
            )
        ),
    )
    assert busy is not None
    assert "computing and data" in busy.evidence


def test_a_run_that_cannot_be_whole_is_told(make: Make) -> None:
    case = make(Planted(0))
    trace = case.after.trace
    torn = replace(trace, manifest=replace(trace.manifest, world_size=3))
    found = explain(case.before.trace, torn).caveats
    assert [each for each in found if "2 of 3 ranks left no steps" in each]


def test_a_throughput_that_is_not_the_published_one_is_told(make: Make) -> None:
    """Published for one V100 are 12 images per second; the synthetic runs do some hundreds."""
    case = make(Planted(0))
    settings = {"batch_size": 4, "precision": "fp32"}
    known = replace(
        case.target,
        workload="mask_rcnn",
        framework="pytorch",
        config={**settings, "device": "Tesla V100-SXM2-16GB"},
    )
    cause = _ask("published_mismatch", replace(case, target=known))
    assert cause is not None
    assert "12" in cause.evidence
    for other in (
        {**settings, "device": "cpu"},
        {**settings, "device": "Tesla V100", "batch_size": 5},
        settings,
    ):
        assert (
            _ask("published_mismatch", replace(case, target=replace(known, config=other))) is None
        )


@pytest.mark.parametrize(("started", "whose"), [(0.0, "top"), (5.5, "the ranks start")])
def test_processes_that_the_ranks_started_are_told_from_those_outside(
    started: float, whose: str, make: Make
) -> None:
    load = Load(8, 1.0, 0.5, 7.9, 40.0, started=started)
    cause = _ask("host_busy", make(replace(PLANTED["host_busy"], after={"load": load})))
    assert cause is not None
    assert ("those that the ranks started" in cause.evidence) == (started > 0)
    assert whose in cause.remedy


@pytest.mark.parametrize(
    ("loader", "workers"), [(WORKERS, 1.0), (replace(WORKERS, workers=0), 0.0), (None, 1.0)]
)
def test_processes_are_loader_workers_only_if_the_loader_has_some(
    loader: Loader | None, workers: float, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loader that was not seen from inside, it is not known."""
    monkeypatch.setattr(Evidence, "_fullest_load", lambda evidence: IDLE)
    load = make(Planted(0, after={"loader": loader})).after.load
    assert load is not None
    assert (load.workers, load.started) == (workers, 1.0 - workers)
    assert load.used == IDLE.used


def test_waits_for_a_core_show_that_ranks_are_held_up(make: Make) -> None:
    """A rank that sleeps much loses no core, and needs no more processor time per step."""
    planted = Planted(13, SLOWER, {"load": replace(IDLE, switches_per_s=50.0)})
    case = make(replace(planted, after={"load": Load(8, 0.7, 1.0, 7.9, 40.0)}))
    assert _ask("host_busy", case) is None
    busy = read_waits(0.4)
    for evidence, counters in ((case.before, read_waits(0.0)), (case.after, busy)):
        vars(evidence)["counters"] = counters
    assert _ask("host_busy", case) is not None


def read_waits(share: float) -> Counters:
    """Return counters of a rank that waits for a core this share of the time."""
    times = np.arange(0, 10_000_000_000, 1_000_000_000)
    rows = {
        "rank": np.zeros(len(times), np.int32),
        "device": pa.nulls(len(times), pa.dictionary(pa.int32(), pa.string())),
        "source": ["process"] * len(times),
        "metric": ["cpu_wait_seconds"] * len(times),
        "time_ns": times,
        "value": share * times / 1e9,
    }
    return Counters(pa.table(rows), 0, 10_000_000_000)
