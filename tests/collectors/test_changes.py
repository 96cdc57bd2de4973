"""When the step time changes, the lines of a few steps are captured, and nothing else is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.captured import captured_steps
from profkit.analysis.overview import build_overview
from profkit.analysis.run_halves import cut_at
from profkit.analysis.selection import CAPTURED, steady_steps
from profkit.collectors.base import Captures, Inside
from profkit.collectors.changes import (
    ENOUGH_SAMPLES,
    KERNELS_AFTER,
    LOOK_EVERY_S,
    MOST_CAPTURES,
    MOST_STEPS,
    REFERENCE_AFTER,
    REFERENCE_GROWTH,
    REFERENCE_STEP,
    SAMPLES_PER_STEP,
    SHORTEST_GAP_S,
    STEPS,
    ChangeCapture,
)
from profkit.errors import UsageError
from profkit.explain.explained import explain
from profkit.report import as_text
from profkit.run.capture_requests import (
    HOUR_S,
    MOST_PER_HOUR,
    MOST_PER_RUN,
    CaptureRequests,
    find_requests,
)
from profkit.run.choosing import Choice
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from profkit.vocab import CAPTURE_REQUESTS
from tests.house.test_packaging import TOP
from tests.instrument.test_run_command import PROFKIT_RUN

MS = 1_000_000
JOB = Path(__file__).parent / "jobs" / "slower.py"
PATIENCE_S = 300
MINUTE_S = 60.0
SEED = 7
"""Waits between samples are drawn, so their sum differs by a few per cent from draw to draw."""


class Loop:
    """A loop whose steps the test ends, and what a capture makes of it."""

    def __init__(
        self, folder: Path, *, is_sampled: bool = False, has_reference: bool = True
    ) -> None:
        self.step, self.step_ns, self.recording = 100, 20 * MS, True
        self.stacks: list[Any] = []
        self.marked: list[int] = []
        self.kernels: list[int] = []
        self.requests = CaptureRequests(folder)
        self.captures = Captures(
            folder / CAPTURE_REQUESTS,
            lambda: (self.step, self.step_ns),
            self.marked.append,
            self.kernels.append,
            is_sampled,
        )
        self.collector = ChangeCapture(time.monotonic_ns)  # which does not wait for the next sample
        self.collector.watch(
            Inside(
                threading.get_ident(),
                "MainThread",
                lambda: self.recording,
                self.stacks.append,
                lambda row: None,
                self.captures,
            )
        )
        if has_reference:
            self.take_reference()

    def take_reference(self) -> None:
        """Have the first capture, which nobody asks for."""
        self.read()
        for _ in range(STEPS + 1):
            self.step += 1
            self.read(ENOUGH_SAMPLES)
        self.step = 100
        for rows in (self.stacks, self.marked, self.kernels):
            rows.clear()

    def read(self, times: int = 1) -> None:
        for _ in range(times):
            for reading in self.collector.read():
                assert reading.metric == "captures_count"
            self.collector.wait_s()


def test_nothing_is_read_until_it_is_asked_for(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.read(5)
    assert (loop.stacks, loop.marked, loop.kernels) == ([], [], [])
    assert loop.collector.wait_s() == LOOK_EVERY_S


def test_a_request_captures_the_next_two_steps(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    assert loop.requests.ask()
    loop.read(3)  # the step that goes on is not captured
    assert loop.stacks == []
    assert 0 < loop.collector.wait_s() < 0.05
    for _ in range(STEPS):
        loop.step += 1
        loop.read(ENOUGH_SAMPLES)
    loop.step += 1
    loop.read(10)
    assert loop.marked == [101, 102]
    assert len(loop.stacks) == STEPS * (ENOUGH_SAMPLES - 1)
    assert loop.kernels == [103 + KERNELS_AFTER]
    assert loop.collector.wait_s() == LOOK_EVERY_S
    loop.read(5)
    assert loop.marked == [101, 102]


def test_the_reference_before_a_change_takes_no_kernels(tmp_path: Path) -> None:
    loop = Loop(tmp_path, has_reference=False)
    loop.step = REFERENCE_STEP - 1
    loop.read(5)
    assert loop.collector.wait_s() == LOOK_EVERY_S
    loop.step = REFERENCE_STEP
    loop.read()
    for _ in range(STEPS + 1):
        loop.step += 1
        loop.read(ENOUGH_SAMPLES)
    assert loop.marked == [REFERENCE_STEP + 1, REFERENCE_STEP + 2]
    assert loop.kernels == []
    loop.read(5)
    assert len(loop.marked) == STEPS


def test_references_are_captured_ever_more_rarely(tmp_path: Path) -> None:
    loop = Loop(tmp_path, has_reference=False)
    while loop.step < 10_000:
        loop.read(ENOUGH_SAMPLES)
        loop.step += 1
    begun = [step for step in loop.marked if step - 1 not in loop.marked]
    gaps = np.diff(begun)
    assert begun[0] == 101
    assert gaps[0] == REFERENCE_AFTER
    assert (gaps <= np.maximum(REFERENCE_AFTER, REFERENCE_GROWTH * np.array(begun[:-1]))).all()
    assert len(begun) < 25
    assert loop.kernels == []


def test_a_capture_that_was_asked_for_is_a_reference(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.step = 180
    loop.requests.ask()
    while loop.step < 300:
        loop.read(ENOUGH_SAMPLES)
        loop.step += 1
    assert [step for step in loop.marked if step - 1 not in loop.marked] == [181, 281]


def test_short_steps_take_more_steps_and_not_too_many(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.requests.ask()
    loop.read()
    for _ in range(2 * MOST_STEPS):
        loop.step += 1
        loop.read(2)
    assert len(loop.marked) == MOST_STEPS


def test_each_step_of_a_capture_is_sampled_to_its_end(tmp_path: Path) -> None:
    """Of a step whose end is missing, the lines at its beginning would seem to take longer."""
    loop = Loop(tmp_path)
    loop.requests.ask()
    loop.read()
    per_step = ENOUGH_SAMPLES // STEPS - 4
    for _ in range(2 * STEPS):
        loop.step += 1
        loop.read(per_step)
    assert len(loop.marked) == STEPS + 1
    assert len(loop.stacks) == len(loop.marked) * (per_step - 1)


def test_a_step_that_never_ends_is_sampled_ever_more_rarely(tmp_path: Path) -> None:
    """A job that becomes slower may hang soon after; hours of dense samples fill a disk."""
    loop = Loop(tmp_path)
    now_ns = [0]
    loop.collector._clock = lambda: now_ns[0]
    loop.collector._random = random.Random(SEED)
    loop.requests.ask()
    loop.read()
    loop.step += 1
    usual: list[float] = []
    while now_ns[0] < MINUTE_S * 1e9:
        list(loop.collector.read())
        waited_s = loop.collector.wait_s()
        assert waited_s <= 2 * LOOK_EVERY_S  # a step that begins must not be missed
        if now_ns[0] < loop.step_ns:
            usual.append(waited_s)
        now_ns[0] += int(waited_s * 1e9)
    assert len(usual) == pytest.approx(loop.step_ns / 1e9 / SHORTEST_GAP_S, rel=0.3)
    assert len(loop.stacks) < 10 * SAMPLES_PER_STEP
    weight_s = sum(row[2] for row in loop.stacks) / 1e9
    assert weight_s == pytest.approx(MINUTE_S, rel=0.05)


def test_a_step_whose_beginning_was_missed_is_not_captured(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    now_ns = [0]
    loop.collector._clock = lambda: now_ns[0]
    loop.requests.ask()
    loop.read()
    for lasted_s in (MINUTE_S, 0.02, 0.02, 0.02, 0.02):  # the first is the step of the request
        ends_ns = now_ns[0] + int(lasted_s * 1e9)
        while now_ns[0] < ends_ns:
            loop.read()
            now_ns[0] += int(loop.collector.wait_s() * 1e9)
        loop.step, loop.step_ns = loop.step + 1, int(lasted_s * 1e9)
    assert loop.marked[:2] == [102, 103]


def test_steps_without_recording_are_not_captured(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.requests.ask()
    loop.read()
    loop.recording = False
    loop.step += 1
    loop.read(10)
    assert loop.stacks == []


def test_with_stacks_all_the_time_only_kernels_are_captured(tmp_path: Path) -> None:
    loop = Loop(tmp_path, is_sampled=True)
    loop.requests.ask()
    loop.read()
    loop.step += 1
    loop.read(10)
    assert (loop.stacks, loop.kernels) == ([], [100 + KERNELS_AFTER])


def test_captures_are_bounded_on_both_sides(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    for number in range(2 * MOST_CAPTURES):
        with (tmp_path / CAPTURE_REQUESTS).open("ab") as file:
            file.write(b".")
        loop.read()
        for _ in range(STEPS + 1):
            loop.step += 1
            loop.read(ENOUGH_SAMPLES)
        assert len(loop.kernels) == min(number + 1, MOST_CAPTURES)
    now_s = [0.0]
    requests = CaptureRequests(tmp_path / "..", lambda: now_s[0])
    asked = []
    for _ in range(10 * MOST_PER_RUN):
        asked.append(requests.ask())
        now_s[0] += HOUR_S / 20
    assert asked[:20].count(True) == MOST_PER_HOUR
    assert asked.count(True) == MOST_PER_RUN


def test_only_a_process_of_profkit_run_is_asked() -> None:
    assert find_requests({}) is None
    assert find_requests({"PROFKIT_RUN": "/x"}) == Path("/x") / CAPTURE_REQUESTS


@pytest.mark.parametrize(
    ("environ", "captures"),
    [
        ({}, True),
        ({"PROFKIT_ON_CHANGE": "capture"}, True),
        ({"PROFKIT_ON_CHANGE": "report"}, False),
        ({"PROFKIT_COLLECT": "none"}, False),
        ({"PROFKIT_COLLECT": "host"}, False),
        ({"PROFKIT_COLLECT": "usual,host"}, True),
    ],
)
def test_it_can_be_switched_off(environ: dict[str, str], captures: bool) -> None:
    assert Choice.read(environ).captures_changes is captures
    with pytest.raises(UsageError, match="--on-change: unknown choice 'x'"):
        Choice.parse("", "", operators=False, on_change="x")


def _train(folder: Path, *words: str) -> tuple[Trace, str, str]:
    command = [*PROFKIT_RUN[:-1], *words, "--", sys.executable, str(JOB)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Trace.open(find_runs(folder / "traces")[-1]), done.stdout, done.stderr


@pytest.mark.measured
def test_the_report_opens_a_change_to_its_line(tmp_path: Path) -> None:
    trace, losses, said = _train(tmp_path)
    assert "since step" in said
    steps = captured_steps(trace)
    assert len(steps) >= STEPS
    assert steady_steps(trace).left_out[CAPTURED] == len(steps)
    view = build_overview(trace)
    assert view.code is None  # the captures say nothing of the whole run
    line = JOB.read_text().splitlines().index("        time.sleep(MORE_S)  # slower") + 1
    text = as_text.overview(view)
    assert f"slower.py:{line}" in text.replace("\n", " ")
    at = view.changes[0].first_step
    cause = explain(*cut_at(trace, at)).causes[0]
    assert (cause.kind, cause.rows) == ("slow_line", ("forward",))
    assert f"slower.py:{line}" in cause.detail
    assert "kernel" not in text
    assert not (trace.path / CAPTURE_REQUESTS).exists()
    plain, same, _ = _train(tmp_path, "--on-change", "report")
    assert same == losses
    assert not len(captured_steps(plain))
    assert not plain.stacks.num_rows


def test_the_page_has_the_numbers_of_the_captures() -> None:
    words = " ".join((TOP / "docs" / "collectors.md").read_text(encoding="utf-8").split())
    for words_of_code in (
        f"next two steps, about {SAMPLES_PER_STEP} times per step",
        f"from step {REFERENCE_STEP} on, and again {REFERENCE_AFTER} steps after the last capture",
        f"or {REFERENCE_GROWTH:.0%} of all steps until then, if that is more",
        f"fewer than {ENOUGH_SAMPLES} samples, it takes up to {MOST_STEPS}.",
        f"at least {1e3 * SHORTEST_GAP_S:g} ms",
        f"at most {MOST_PER_HOUR} captures per hour and {MOST_PER_RUN} per run",
    ):
        assert words_of_code in words
