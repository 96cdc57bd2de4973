"""Runs on a device: all screens show the device's times, and say which of them are missing."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit import cli
from profkit.analysis.overview import Overview, build_overview
from profkit.analysis.views.live import LiveView, build_live_view
from profkit.analysis.views.ranks import build_ranks_view
from profkit.analysis.views.run import build_run_view
from profkit.explain.compared import compare_runs
from profkit.explain.explained import explain, explain_repeats, scale_runs
from profkit.explain.ledger import Verdict
from profkit.frame.costs import DATA, NO_DEVICE_TIMES, REST
from profkit.frame.device_times import PhaseClock
from profkit.frame.estimate import Estimate, estimate_ratios
from profkit.frame.phases import UNKNOWN, sum_phases
from profkit.frame.run_frame import UNTIMED_EXCHANGE, frame_of
from profkit.report.cause_words import cause_cost, no_difference_words
from profkit.report.overview_document import illustrate, overview
from profkit.report.run_document import run as run_document
from profkit.report.words import live_parts_words
from profkit.show import html, markdown
from profkit.show import json as show_json
from profkit.show import text as show_text
from profkit.testing import synthetic_trace
from profkit.text import duration
from profkit.trace import Trace
from profkit.trace.tail import RunTail
from profkit.vocab import PHASES
from tests.device_runs import MS, WARM_UP, Plan, device_run
from tests.documents import gap_json, report_json, report_text, scaling_text

RECORDED = Path(__file__).parents[2] / "traces"
TOLERANCE = 0.02
"""A phase may differ from the truth by this share of a step."""

Make = Callable[..., Trace]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A run by its plan; each is made once."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, Trace] = {}

    def run(**options: Any) -> Trace:
        name = repr(sorted(options.items(), key=str))
        if name not in made:
            path = device_run(folder / str(len(made)), Plan(**options))
            made[name] = Trace.open(path)
        return made[name]

    return run


def _said(*words: object) -> str:
    """Return what a command prints, on one line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(list(map(str, words)))
    return " ".join(out.getvalue().split())


def _live(trace: Trace) -> LiveView:
    return build_live_view("run", RunTail(trace.path).look(), 0)


def _phases(view: Overview) -> dict[str, float]:
    return {part.name: part.step_ns.value for part in view.phases}


def _ledger_ns(trace: Trace, other: Trace) -> dict[str, float]:
    """Return the rows of the target's ledger, per step of its own batch."""
    ledger = explain(other, trace).ledger
    return {row.name: row.target.value * ledger.samples_per_step for row in ledger.rows}


PLANS: Mapping[str, Mapping[str, Any]] = {
    "one": {},
    "short backward": {"backward_ns": 12 * MS, "optimizer_ns": 20 * MS},
    "exchange": {"ranks": 2, "tail_ns": 75 * MS},
    "late rank": {"ranks": 2, "tail_ns": 5 * MS, "late_ns": {1: 20 * MS}},
    "untimed exchange": {"ranks": 2, "tail_ns": 75 * MS, "tail": "host"},
    "unrecorded exchange": {"ranks": 2, "tail_ns": 75 * MS, "tail": "none"},
    "control steps": {"control": (lambda step: step % 8 == 7)},
    "late anchor": {"anchored_from": 20},
    "no events left": {"unmarked": range(0, 60, 7)},
    "one rank without": {"ranks": 2, "tail_ns": 75 * MS, "without_anchor": (1,)},
}


@pytest.mark.parametrize("name", PLANS)
def test_every_screen_shows_the_truth_and_the_same(name: str, make: Make) -> None:
    plan, trace = Plan(**PLANS[name]), make(**PLANS[name])
    view = build_overview(trace)
    used = frame_of(trace).costs.selection.steps.tolist()
    truth = plan.device_ns(used)
    step_ns = sum(truth.values())
    found = _phases(view)
    assert set(found) == set(truth)
    for phase, ns in truth.items():
        assert found[phase] == pytest.approx(ns, abs=TOLERANCE * step_ns), phase
    assert sum(found.values()) == pytest.approx(step_ns, rel=TOLERANCE)

    screen = build_run_view(trace)
    parts = {part.name: part.step_ns.value for part in screen.parts}
    ledger = _ledger_ns(trace, trace)
    report = {row["phase"]: row["step_ms"]["value"] for row in report_json(view)["phases"]}
    twin = {
        row["name"]: row["ns_per_step"]["value"]
        for row in show_json.document(run_document(screen))["parts"]
    }
    for phase, ns in found.items():
        assert parts[phase] == pytest.approx(ns, abs=0.5), phase
        assert ledger[phase] == pytest.approx(ns, abs=0.5), phase
        assert 1e6 * report[phase] == pytest.approx(ns, abs=0.5), phase
        assert twin[phase] == pytest.approx(ns, abs=0.5), phase
    for part, phase_share in zip(screen.parts, view.phases, strict=True):
        assert (part.step_ns, part.share) == (phase_share.step_ns, phase_share.share)


@pytest.mark.parametrize("name", ["one", "exchange", "late rank"])
def test_ranks_and_live_and_pages_agree_with_the_report(name: str, make: Make) -> None:
    trace = make(**PLANS[name])
    view = build_overview(trace)
    found = _phases(view)
    ranks = build_ranks_view(trace)
    for phase, ns in found.items():
        own = [row.phase_ns.get(phase, 0.0) for row in ranks.ranks]
        assert sum(own) / len(own) == pytest.approx(ns, abs=0.5), phase
    live = {part.name: part.step_ns for part in _live(trace).parts}
    latest = Plan(**PLANS[name]).device_ns(range(10, 60))
    for phase in found:
        assert live[phase] == pytest.approx(latest[phase], abs=TOLERANCE * sum(latest.values()))
    document = overview(view, illustrate(trace, view))
    pages = [show_text.document(document), markdown.document(document)]
    for page in (*pages, html.document(document, "0")):
        for ns in found.values():
            assert duration(ns) in page


def test_the_host_s_time_stands_next_to_the_device_s(make: Make) -> None:
    view = build_overview(make())
    host = {part.name: part.host_ns for part in view.phases}
    assert (host["forward"], host["backward"]) == (3 * MS, 4 * MS)
    shown = report_text(view)
    assert "host" in shown
    forward = next(line for line in shown.splitlines() if line.strip().startswith("forward"))
    assert "30.5 ms" in forward
    assert "3.00 ms" in forward


def test_the_exchange_is_whom_scaling_is_lost_to(make: Make) -> None:
    one, two = make(), make(ranks=2, tail_ns=75 * MS)
    rows = scale_runs([one, two, two])
    assert rows[1].largest_loss == "exposed communication"
    step_ns = sum(Plan().device_ns(range(WARM_UP, 60)).values())
    truth = step_ns / (step_ns + 75 * MS)
    assert rows[1].factors["exposed communication"].value == pytest.approx(truth, rel=0.001)
    assert rows[1].factors["computation"].value == pytest.approx(1, rel=0.001)
    found = {cause.kind: cause for cause in explain(one, two).causes}
    cost = found["exposed_communication"].cost_ns
    assert cost is not None
    assert cost.value == pytest.approx(75 * MS, rel=TOLERANCE)


def test_waiting_for_a_late_rank_is_split_from_the_transfer(make: Make) -> None:
    trace = make(ranks=2, tail_ns=5 * MS, late_ns={1: 20 * MS})
    view = build_overview(trace)
    assert view.late_rank is not None
    assert (view.late_rank.rank, view.late_rank.phase) == (1, "forward")
    assert view.late_rank.waited_ns == pytest.approx(20 * MS, rel=TOLERANCE)
    assert view.late_rank.excess_ns == pytest.approx(20 * MS, rel=TOLERANCE)
    meeting = scale_runs([make(), trace, trace])[1].meeting
    assert meeting is not None
    assert meeting.waiting_ns == pytest.approx(10 * MS, rel=TOLERANCE)
    assert meeting.waited_for[0].phase == "forward"


@pytest.mark.parametrize("tail", ["host", "none"])
def test_an_exchange_that_nobody_timed_on_the_device_is_no_figure(tail: str, make: Make) -> None:
    one, two = make(), make(ranks=2, tail_ns=75 * MS, tail=tail)
    view = build_overview(two)
    assert "allreduce" not in _phases(view)
    assert view.exchange is None
    assert UNTIMED_EXCHANGE in view.quality
    assert "and their exchange" in report_text(view)
    found = explain(one, two)
    assert found.ledger.find("allreduce") is None
    assert not found.causes
    words = " ".join(scaling_text(scale_runs([one, two, two])).split())
    assert "computation holds the exchange" in words
    assert "nobody is named" in words
    row = scale_runs([one, two, two])[1]
    assert not np.isfinite(row.factors["exposed communication"].value)
    ranks = build_ranks_view(two)
    assert (ranks.waits, ranks.late_rank) == (None, None)
    assert "not timed" in ranks.why_no_waits


def test_a_run_without_device_times_says_so_first_and_calls_nothing_a_loss(make: Make) -> None:
    trace = make(without_anchor=(0,))
    view = build_run_view(trace)
    assert view.overview.clock is PhaseClock.LAUNCH
    assert view.overview.losses.found == ()
    times = view.overview.device_times
    assert times is not None
    assert (times.phases, times.missing, times.ranks) == (240, 240, (0,))
    for words in (_said("report", trace.path), _said("verify", trace.path)):
        assert "no device times for 240 of 240 phases" in words
        assert "(no idle stream: 300)" in words
    assert "No device times: the phases are on the host's clock" in _said("report", trace.path)
    figures = report_json(view.overview)
    assert figures["device_times"]["missing"] == 240
    assert figures["phases_clock"] == "launch"


def test_part_of_the_device_times_says_which(make: Make) -> None:
    trace = make(unmarked=range(0, 60, 7))
    view = build_overview(trace)
    assert view.costs is not None
    assert view.costs.selection.left_out[NO_DEVICE_TIMES] == 8
    assert len(view.selection.steps) == 55
    words = " ".join(report_text(view).split())
    assert "47 of 55 used steps (not: 8 no device times)" in words
    assert "no device times for 36 of 240 phases" in words
    rank = make(ranks=2, tail_ns=75 * MS, without_anchor=(1,))
    words = " ".join(report_text(build_overview(rank)).split())
    assert "with none on 1 rank (1)" in words
    assert "1 of 2 ranks" in words
    assert frame_of(rank).costs.unclocked == (1,)
    assert build_ranks_view(rank).ranks[1].phase_ns == {}


def test_the_reasons_are_those_of_all_ranks_or_not_recorded(make: Make) -> None:
    both = make(ranks=2, tail_ns=75 * MS, without_anchor=(0, 1))
    assert "(no idle stream: 720)" in _said("verify", both.path)
    words = _said("report", make(without_anchor=(0,), silent=True).path)
    assert "(the run did not record why)" in words


def test_device_times_and_launch_times_are_not_compared(make: Make) -> None:
    one, none = make(), make(without_anchor=(0,))
    for base, target, without in ((one, none, "target"), (none, one, "base")):
        found = explain(base, target)
        assert found.ledger.verdict is Verdict.CANNOT_JUDGE
        assert f"the {without} has no device times" in " ".join(found.ledger.unlike)
        assert [row.name for row in found.ledger.rows] == [REST]
        assert not found.causes
        assert any("no device times for 240" in caveat for caveat in found.caveats)
    pooled = explain_repeats([one, none], [one])
    assert pooled.ledger.verdict is Verdict.CANNOT_JUDGE
    assert "some repeats" in " ".join(pooled.ledger.unlike)
    row = compare_runs([one, none, none]).scaling or scale_runs([one, none, none])
    assert all(not np.isfinite(factor.value) for factor in row[1].factors.values())


def test_two_runs_without_device_times_compare_what_the_host_knows(make: Make) -> None:
    none = make(without_anchor=(0,))
    found = explain(none, make(without_anchor=(0,), forward_ns=50 * MS))
    assert (found.ledger.total.delta.low or 0) > 0
    assert [row.name for row in found.ledger.rows] == [DATA, REST]
    words = _said("explain", none.path, none.path)
    assert "nothing says what the device did" in words
    assert "cannot be found without device times" in words


def test_control_steps_are_no_part_of_what_live_shows(make: Make) -> None:
    view = _live(make(control=(lambda step: step % 8 == 7)))
    unknown = next(part.share for part in view.parts if part.name == UNKNOWN)
    assert abs(unknown) < 0.001
    assert view.recent_steps == 50
    assert view.parts_steps == 44
    assert "device's times of 44 of the latest 50 steps" in " ".join(live_parts_words(view))


def test_a_cost_beyond_the_gap_says_why(make: Make) -> None:
    one, two = make(), make(ranks=2, tail_ns=75 * MS, backward_ns=20 * MS)
    found = explain(one, two)
    (cause,) = (each for each in found.causes if each.kind == "exposed_communication")
    assert cause.share_of_gap == pytest.approx(75 / 35, rel=TOLERANCE)
    words = cause_cost(cause, found.ledger)
    assert "; that is more than the gap, because other rows fell by 40.0 ms" in words
    assert "%" not in words.partition("interval")[2].partition(";")[2]
    assert words.endswith("most of all backward")
    estimated = dataclasses.replace(cause, cost_ns=Estimate(90 * MS, 80 * MS, 100 * MS))
    assert "not a row of the table" in cause_cost(estimated, found.ledger)
    within = dataclasses.replace(cause, cost_ns=Estimate(30 * MS), share_of_gap=30 / 35)
    assert "more than" not in cause_cost(within, found.ledger)


@pytest.mark.parametrize(
    ("environment", "config", "words", "nothing"),
    [
        ({}, {}, "It is not known what else differs", False),
        ({}, {"batch_size": 8}, "differs: all settings are the same; versions and variables", True),
        (
            {"packages": {"torch": "2"}},
            {},
            "all versions are the same; settings and variables",
            True,
        ),
        (
            {"packages": {"torch": "2"}, "variables": {}},
            {"batch_size": 8},
            "both runs recorded differs: all settings, versions and variables are the same",
            True,
        ),
    ],
)
def test_only_what_was_recorded_is_called_the_same(
    environment: dict[str, Any], config: dict[str, Any], words: str, nothing: bool, make: Make
) -> None:
    trace = make()
    manifest = dataclasses.replace(trace.manifest, environment=environment, config=config)
    same = dataclasses.replace(trace, manifest=manifest)
    found = explain(same, same)
    assert words in no_difference_words(found.recorded)
    assert gap_json(found)["nothing_else_differs"] is nothing


def test_nothing_changes_without_a_device(tmp_path: Path) -> None:
    runs = map(Trace.open, sorted(RECORDED.glob("recorded-*")))
    on_host = [run for run in runs if run.ranks[0].manifest.device == "cpu"]
    assert on_host
    synthetic = Trace.open(synthetic_trace(tmp_path / "run", ranks=2, steps=60))
    for trace in (*on_host, synthetic):
        view = build_overview(trace)
        used = view.selection.steps
        host = sum_phases(trace.spans, used)[0].mean(axis=1) / len(trace.ranks)
        spent = {phase: ns for phase, ns in zip(PHASES, host.tolist(), strict=True) if ns}
        found = _phases(view)
        found.pop(UNKNOWN)
        assert found == pytest.approx(spent, abs=1e-3)
        figures = report_json(view)
        assert not {"phases_clock", "device_times"} & set(figures)
        assert all(row["host_ms"] is None for row in figures["phases"])
        assert "device" not in " ".join(view.quality)
        assert "devices" not in _said("explain", trace.path, trace.path)


def test_intervals_end_at_what_is_possible() -> None:
    rare, most = np.zeros(40), np.full(40, 100.0)
    rare[[3, 30]], most[[3, 30]] = 50.0, 10.0
    whole = np.full(40, 100.0)
    above, below = np.stack([rare, most, rare - 20]), np.stack([whole, whole, whole])
    shares = np.array([True, True, True])
    low, high, signed = estimate_ratios(above, below, shares=shares)
    assert low.low == 0.0
    assert high.high == 1.0
    assert signed.low is not None
    assert signed.low < 0, "a part that is negative in some step has no limit at zero"
