"""Steps in which the compiler worked leave the figures, and the rules name why it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.evidence import Evidence
from profkit.explain.explained import explain
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import open_job
from profkit.explain.predict.prediction import WITHOUT, Question
from profkit.explain.rules.base import Cause
from profkit.frame.compiling import find_compiling
from profkit.frame.run_frame import frame_of
from profkit.frame.selection import COMPILING
from profkit.instrument.compilations import Compilations
from profkit.instrument.recorder import MemorySink, Recorder
from profkit.report.compiling_section import compiled_line, compiling_section
from profkit.testing import FakeClock
from profkit.testing.series import Compiled, series_trace
from profkit.trace import Trace
from profkit.vocab import EventKind
from tests.documents import report_json

MS = 1_000_000
STEPS = 200
LATE = (40, 80, 120, 160)
GUARD = ("forward (train.py:12)", "tensor 'x' size mismatch at index 0")


def _trace(
    folder: Path,
    name: str,
    compiled: tuple[Compiled, ...] = (),
    *,
    ranks: int = 1,
    seed: int = 0,
    framework: str = "pytorch",
) -> Trace:
    random = np.random.default_rng(seed)
    forward = 50 * MS * np.exp(0.02 * random.standard_normal(STEPS))
    for step in {each.step for each in compiled}:
        forward[step] += max(each.ns for each in compiled if each.step == step)
    phases = {"data": np.full(STEPS, 5.0 * MS), "forward": forward}
    phases["backward"] = np.full(STEPS, 30.0 * MS)
    run = series_trace(folder / name, phases, compiled=compiled, ranks=ranks, framework=framework)
    return Trace.open(run)


def _late(rank: int = 0, ns: float = 900.0 * MS) -> tuple[Compiled, ...]:
    first = Compiled(rank, 0, EventKind.COMPILED, 2_000.0 * MS)
    return (first, *(Compiled(rank, step, EventKind.RECOMPILED, ns, *GUARD) for step in LATE))


def _causes(base: Trace, target: Trace) -> dict[str, Cause]:
    return {cause.kind: cause for cause in explain(base, target).causes}


def test_steps_that_compiled_leave_the_figures_and_are_counted(tmp_path: Path) -> None:
    trace = _trace(tmp_path, "run", _late())
    view = build_overview(trace)
    assert view.selection.left_out[COMPILING] == len(LATE)
    assert not set(LATE) & set(view.selection.steps.tolist())
    assert view.step_ns.value == pytest.approx(85 * MS, rel=0.01)
    assert view.compiling is not None
    assert view.compiling.ns == pytest.approx(5_600 * MS)
    assert (
        compiled_line(view) == "5 of 200 steps compiled, 5.60 s in all; left out of the throughput"
    )
    (again,) = view.compiling.recompiled
    assert (again.function, again.times) == ("forward (train.py:12)", 4)
    assert again.guard == "tensor 'x' size mismatch at index 0"


def test_the_interval_of_a_job_that_compiles_eight_times_is_possible(tmp_path: Path) -> None:
    """Before, such a run showed a step of 203 ms with an interval from -36.5 to 415 ms."""
    compiled = tuple(
        Compiled(0, 20 + 5 * place, EventKind.RECOMPILED, 3e3 * MS, *GUARD) for place in range(8)
    )
    view = build_overview(_trace(tmp_path, "run", compiled))
    assert view.step_ns.low is not None
    assert view.step_ns.high is not None
    assert 80 * MS < view.step_ns.low < view.step_ns.value < view.step_ns.high < 90 * MS


def test_a_job_that_compiles_in_most_steps_keeps_them(tmp_path: Path) -> None:
    compiled = tuple(
        Compiled(0, step, EventKind.RECOMPILED, 50.0 * MS, *GUARD) for step in range(0, STEPS, 1)
    )
    trace = _trace(tmp_path, "run", compiled)
    assert COMPILING not in frame_of(trace).selection.left_out
    view = build_overview(trace)
    assert "all figures include them" in compiled_line(view)
    shares = {part.name: part.share.value for part in view.phases}
    assert shares["compile"] == pytest.approx(50 / 135, rel=0.05)
    found = _causes(_trace(tmp_path, "quick", seed=1), trace)["recompiles"]
    assert found.share_of_gap == pytest.approx(1.0, rel=0.1)


def test_a_run_without_a_compiler_says_nothing_of_one(tmp_path: Path) -> None:
    view = build_overview(_trace(tmp_path, "run"))
    assert view.compiling is None
    assert compiled_line(view) == ""


def test_recompiles_are_a_cause_with_their_guard_and_cost(tmp_path: Path) -> None:
    base, target = (
        _trace(tmp_path, "base", _late()[:1]),
        _trace(tmp_path, "target", _late(), seed=1),
    )
    found = _causes(base, target)["recompiles"]
    assert "forward (train.py:12) 4 times" in found.evidence
    assert "size mismatch at index 0" in found.evidence
    assert found.cost_ns is not None
    assert found.cost_ns.value == pytest.approx(3_600 * MS / 190, rel=0.01)
    assert found.share_of_gap is None, "the rows exclude these steps"
    assert "recompiles" not in _causes(target, _trace(tmp_path, "again", _late(), seed=2))


@pytest.mark.parametrize("framework", ["paddle", "paddlepaddle", "pytorch", ""])
def test_the_remedy_is_that_of_the_framework(tmp_path: Path, framework: str) -> None:
    base = _trace(tmp_path, "base", _late()[:1], framework=framework)
    target = _trace(tmp_path, "target", _late(), seed=1, framework=framework)
    remedy = _causes(base, target)["recompiles"].remedy
    assert ("torch" in remedy) == (framework == "pytorch")
    assert ("InputSpec" in remedy) == framework.startswith("paddle")
    assert "drop the last partial batch" in remedy


def test_a_reason_that_was_known_is_not_forgotten(tmp_path: Path) -> None:
    """The recorder keeps 200 names; a function whose sizes vary has used them up by then."""
    sink = MemorySink()
    recorder = Recorder(sink, clock=FakeClock(now_ns=1))
    log = Compilations(recorder, sink.appender("samples"), lambda: True)
    for size in range(250):
        log.add(1, 2, "forward (train.py:12)", guard=f"expected {size}")
    compiled = []
    for place, (_, _, kind, name, reason, _) in enumerate(sink.rows["samples"]):
        compiled.append(Compiled(0, place % STEPS, kind, MS, name, reason))
    found = find_compiling(_trace(tmp_path, "run", tuple(compiled)))
    assert found is not None
    (again,) = found.recompiled
    assert (again.function, again.times) == ("forward (train.py:12)", 250)
    assert again.guard.startswith("expected ")


def test_a_reason_that_was_never_kept_is_said_to_be_missing(tmp_path: Path) -> None:
    kind = EventKind.RECOMPILED
    compiled = tuple(Compiled(0, step, kind, 900.0 * MS, GUARD[0]) for step in LATE)
    base, target = _trace(tmp_path, "base"), _trace(tmp_path, "target", compiled, seed=1)
    evidence = _causes(base, target)["recompiles"].evidence
    assert "forward (train.py:12) 4 times, because of a reason that was not kept" in evidence


def test_no_step_is_predicted_without_what_no_row_includes(tmp_path: Path) -> None:
    """The rows exclude the steps that compiled: a step is as long without them."""
    base, target = _trace(tmp_path, "base"), _trace(tmp_path, "target", _late(), seed=1)
    found = _causes(base, target)["recompiles"]
    assert (found.cost_ns is None, found.share_of_gap, found.without_ns) == (False, None, None)
    sides = [open_job(Evidence(trace)) for trace in (base, target)]
    answer = ask(sides[1], Question(WITHOUT, cause="recompiles"), sides[0])
    assert answer.step_ns is None
    assert "no figure includes it" in answer.why
    often = tuple(
        Compiled(0, step, EventKind.RECOMPILED, 90.0 * MS, *GUARD) for step in range(20, 180)
    )
    mostly = _causes(base, _trace(tmp_path, "mostly", often, seed=2))["recompiles"]
    assert mostly.without_ns is not None


def test_few_short_compilations_are_no_cause(tmp_path: Path) -> None:
    base, target = _trace(tmp_path, "base"), _trace(tmp_path, "target", _late(ns=20.0 * MS), seed=1)
    assert "recompiles" not in _causes(base, target)


def test_graph_breaks_name_their_place(tmp_path: Path) -> None:
    broken = (
        Compiled(0, 0, EventKind.COMPILED, 10.0 * MS),
        Compiled(0, 0, EventKind.GRAPH_BREAK, 1, "print (a.py:3)"),
    )
    base = _trace(tmp_path, "base", broken[:1])
    target = _trace(tmp_path, "target", broken, seed=1)
    found = _causes(base, target)["graph_breaks"]
    assert "print (a.py:3)" in found.evidence
    assert found.cost_ns is None
    assert "graph_breaks" not in _causes(target, _trace(tmp_path, "again", broken, seed=2))


def test_a_function_that_is_compiled_no_more_is_said(tmp_path: Path) -> None:
    limited = (*_late(), Compiled(0, 170, EventKind.OVER_LIMIT, 8, GUARD[0]))
    base = _trace(tmp_path, "base", _late()[:1])
    target = _trace(tmp_path, "target", limited, seed=1)
    said = "forward (train.py:12) has 8 variants, the most that the compiler allows"
    assert said in _causes(base, target)["recompiles"].evidence
    alone = _trace(tmp_path, "alone", (limited[0], limited[-1]), seed=2)
    found = _causes(base, alone)["recompiles"]
    assert said in found.evidence
    assert found.cost_ns is None
    assert "recompiles" not in _causes(alone, _trace(tmp_path, "again", limited[-1:], seed=3))
    view = build_overview(target)
    assert view.compiling is not None
    assert view.compiling.compilations == 5, "a limit is no compilation"
    (section,) = compiling_section(view)
    assert section.grid is not None
    assert any("run uncompiled from then on" in row[-1] for row in section.grid.rows)


def test_a_function_that_could_not_be_compiled_is_a_row_and_a_cause(tmp_path: Path) -> None:
    failed = (*_late()[:1], Compiled(0, 0, EventKind.NOT_COMPILED, 1, "f (a.py:3)", "no kernel"))
    base, target = _trace(tmp_path, "base", _late()[:1]), _trace(tmp_path, "target", failed, seed=1)
    evidence = _causes(base, target)["graph_breaks"].evidence
    assert "1 function could not be compiled, 0 in the base: f (a.py:3): no kernel" in evidence
    assert "divided" not in evidence
    view = build_overview(target)
    assert view.compiling is not None
    assert view.compiling.compilations == 1
    (section,) = compiling_section(view)
    assert section.grid is not None
    assert ("not compiled", "1", "", "f (a.py:3): no kernel") in section.grid.rows
    shown = report_json(view)["compiling"]
    assert shown is not None
    assert shown["not_compiled"] == [{"function": "f (a.py:3)", "reason": "no kernel", "times": 1}]


def test_a_rank_that_compiles_alone_is_named(tmp_path: Path) -> None:
    base = _trace(tmp_path, "base", ranks=2)
    alone = _trace(tmp_path, "alone", _late(rank=1), ranks=2, seed=1)
    found = _causes(base, alone)
    assert "mostly rank 1" in found["compile_on_one_rank"].evidence
    assert "recompiles" not in found
    both = _trace(tmp_path, "both", (*_late(rank=0), *_late(rank=1)), ranks=2, seed=1)
    assert set(_causes(base, both)) & {"compile_on_one_rank", "recompiles"} == {"recompiles"}


def _once(step: int, ns: float, kind: EventKind, *names: str) -> Compiled:
    return Compiled(0, step, kind, ns, *names)


def test_first_compilations_are_no_recompiles(tmp_path: Path) -> None:
    """A shape changed in the warm-up; later, a function for validation is compiled once."""
    base = _trace(tmp_path, "base", _late()[:1])
    compiled = (
        *_late()[:1],
        _once(2, 900.0 * MS, EventKind.RECOMPILED, *GUARD),
        _once(100, 3_000.0 * MS, EventKind.COMPILED),
    )
    assert "recompiles" not in _causes(base, _trace(tmp_path, "target", compiled, seed=1))


def test_only_later_recompiles_are_named_and_counted(tmp_path: Path) -> None:
    other = "embed (train.py:30)", "len(L['ids']) == 3"
    backward = [_once(step, 100.0 * MS, EventKind.COMPILED, "backward") for step in LATE]
    compiled = (
        *_late(),
        *backward,
        _once(1, 900.0 * MS, EventKind.RECOMPILED, *GUARD),
        _once(2, 9_000.0 * MS, EventKind.RECOMPILED, *other),
    )
    base = _trace(tmp_path, "base", _late()[:1])
    target = _trace(
        tmp_path, "target", (*compiled, _once(100, 5e3 * MS, EventKind.COMPILED)), seed=1
    )
    found = _causes(base, target)["recompiles"]
    assert "4 steps after the warm-up compiled functions again, 4.00 s in all" in found.evidence
    assert "forward (train.py:12) 4 times" in found.evidence
    assert "embed" not in found.evidence
    assert found.cost_ns is not None
    assert found.cost_ns.value == pytest.approx(4_000 * MS / 190, rel=0.01)
