"""What is said of runs that were recorded on GPUs, next to what their jobs measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.run_change import ChangeKind
from profkit.explain.evidence_kernels import names_memories
from profkit.explain.explained import explain
from profkit.frame.phases import UNKNOWN
from profkit.hangs.account import FINE, read_account
from profkit.report.device_sections import launch_notes, what_devices_did
from profkit.report.ledger_document import explained
from profkit.show.document import Shares
from profkit.trace import Trace

TRACES = Path(__file__).parents[2] / "traces"

OWN_CLOCK_MS = {"": 34.65, "-pageable": 43.97, "-loop": 50.89, "-late": 52.97}
"""What the job wrote itself: the time of its steps after 20, with the device's rest before it."""

BUSY_MS = 21.20
"""What the kernels of a step take together, by torch.profiler in the same job without profkit."""


def recorded(name: str) -> Trace:
    return Trace.open(TRACES / f"recorded-h200-images{name}")


@pytest.mark.parametrize("name", OWN_CLOCK_MS)
def test_the_step_is_that_of_the_jobs_own_clock(name: str) -> None:
    step_ms = build_overview(recorded(name)).step_ns.value / 1e6
    assert step_ms == pytest.approx(OWN_CLOCK_MS[name], rel=0.03)


@pytest.mark.parametrize(
    ("name", "kind"), [("-pageable", "unpinned_copy"), ("-loop", "optimizer_unfused")]
)
def test_the_planted_fault_is_the_first_cause(name: str, kind: str) -> None:
    found = explain(recorded(""), recorded(name))
    assert found.ledger.verdict.value == "regression"
    assert found.causes[0].kind == kind


def test_a_change_within_the_run_is_found_and_named_in_a_comparison() -> None:
    """The job sleeps 40 ms longer from its step 200 on."""
    (change,) = build_overview(recorded("-late")).changes
    assert change.kind is ChangeKind.STEP
    assert change.first_step == pytest.approx(200, abs=3)
    assert change.phases[0][0] == "unknown"
    assert change.phases[0][1] / 1e6 == pytest.approx(40, rel=0.05)
    view = explain(recorded(""), recorded("-late"))
    assert "from step 200 on" in explained(view).headline
    assert not any("since step" in caveat for caveat in explain(recorded(""), recorded("")).caveats)


def test_the_bar_of_the_device_is_its_whole_time_once() -> None:
    view = build_overview(recorded("-kernels")).devices
    assert view is not None
    ((_, bar),) = what_devices_did(view).charts
    assert isinstance(bar, Shares)
    assert sum(share for _, share in bar.parts) == pytest.approx(1, abs=1e-12)


def test_captured_kernels_keep_the_device_busy_as_long_as_the_profiler_says() -> None:
    view = build_overview(recorded("-kernels")).devices
    assert view is not None
    assert view.whole.busy_ns / view.device_steps / 1e6 == pytest.approx(BUSY_MS, rel=0.02)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Memcpy HtoD (Pinned -> Device)", True),
        ("Memcpy HtoD (Unknown -> Device)", False),
        ("Memcpy HtoD", False),
    ],
)
def test_a_copy_of_unknown_memory_is_neither_pinned_nor_pageable(name: str, known: bool) -> None:
    assert names_memories(name) is known


def test_a_host_that_takes_as_long_as_the_device_is_said_to() -> None:
    """Captured kernels say how long the device is idle instead: more than half of the step."""
    view = build_overview(recorded(""))
    (note,) = launch_notes(view)
    assert "so either may wait for the other" in note
    ahead = [replace(part, host_ns=(part.host_ns or 0) / 2) for part in view.phases]
    assert not list(launch_notes(replace(view, phases=tuple(ahead))))
    captured = build_overview(recorded("-kernels"))
    assert not list(launch_notes(captured))
    assert captured.devices is not None
    assert captured.devices.whole.idle_ns > 0.5 * captured.devices.whole.window_ns


def test_a_device_that_hung_is_said_later_and_its_step_in_the_report() -> None:
    """The device spun for 10 s behind step 60, in which the job reads its loss."""
    trace = Trace.open(TRACES / "recorded-h100-hang")
    (long_step,) = build_overview(trace).long_steps.longest
    assert (long_step.step, long_step.phase, long_step.left_out) == (60, "unknown", "")
    assert long_step.wall_ns / 1e9 == pytest.approx(10, rel=0.05)
    account = read_account(trace.path)
    assert account.state == FINE
    (hang,) = account.moved_again
    assert hang["class"] == "device busy"
    assert "rank 0 stands: job.py:129 Job._plant" in hang["text"]
    assert "its device is still at work that was launched more than 5.10 s ago" in hang["text"]


def test_a_batch_that_takes_as_long_to_make_is_not_said_to_take_longer() -> None:
    """Unpinned batches arrive late; decode went from 14.3 to 14.5 ms."""
    causes = explain(recorded(""), recorded("-pageable")).causes
    (waiting,) = (cause for cause in causes if cause.kind == "input_bound")
    assert "takes longer" not in waiting.evidence
    assert "most of it is queue" in waiting.evidence


@pytest.mark.parametrize("run", sorted(TRACES.glob("recorded-h[12]00-*")), ids=lambda run: run.name)
def test_places_of_unknown_time_add_up_to_the_row_in_the_table(run: Path) -> None:
    """The table leaves out steps that are far out, such as the one in which the device hung."""
    view = build_overview(Trace.open(run))
    (unknown,) = (part for part in view.phases if part.name == UNKNOWN)
    assert unknown.host_ns is not None
    found_ns = sum(place.step_ns for place in view.unknown_places)
    assert found_ns == pytest.approx(unknown.host_ns, rel=1e-6)
