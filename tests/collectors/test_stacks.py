"""Sampled stacks name the lines that are slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.stacks import FEWEST_SAMPLES, CodeView, PhaseLines
from profkit.collectors import _frame_table, stacks
from profkit.collectors._origins import MAX_CHARS, Origins
from profkit.collectors.base import Inside
from profkit.collectors.stacks import StackSampler
from profkit.run.choosing import Choice
from profkit.run.collecting import usable_collectors
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from tests.documents import report_text
from tests.instrument.test_run_command import PROFKIT_RUN

JOB = Path(__file__).parent / "jobs" / "slow_lines.py"
FORWARD = "Net.forward" if sys.version_info >= (3, 11) else "forward"
"""Older versions of Python do not say of which class a function is."""

STEPS = 230
"""A busy machine delays samples: in 130 steps, a phase once had 27, and 30 are needed."""
PATIENCE_S = 300


def _train(folder: Path, *words: str, recorded: bool = True) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(JOB), *words]
    if recorded:
        command = [*PROFKIT_RUN, *command]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, str]:
    folder = tmp_path_factory.mktemp("stacks")
    done = _train(folder, str(STEPS))
    assert done.returncode == 0, done.stderr[-2000:]
    return Trace.open(find_runs(folder / "traces")[-1]), done.stdout


def _line_of(words: str) -> int:
    lines = JOB.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if words in line)


def _part(view: CodeView | None, phase: str) -> PhaseLines:
    assert view is not None
    return next(part for part in view.phases if part.phase == phase)


@pytest.mark.parametrize("phase", ["data", "forward", "unknown"])
def test_the_slow_line_of_a_phase_comes_first(job: tuple[Trace, str], phase: str) -> None:
    part = _part(build_overview(job[0]).code, phase)
    assert part.judged, part
    first = part.lines[0]
    assert first.place.file.endswith("slow_lines.py")
    assert first.place.line == _line_of(f"# slow in {phase}")
    assert first.share.low is not None
    assert first.share.high is not None
    assert 0 <= first.share.low < first.share.value <= first.share.high <= 1


def test_the_share_of_a_line_is_that_of_its_time(job: tuple[Trace, str]) -> None:
    """`clip` spins for 40 ms of each step, and makes most of what is outside all phases."""
    view = build_overview(job[0])
    part = _part(view.code, "unknown")
    spun_ns = view.unknown_places[0].step_ns  # by the clock, without samples
    first = part.lines[0].step_ns
    loops = [line.step_ns.value for line in part.lines if line.place.function.startswith("clip")]
    assert 20e6 < sum(loops) < min(48e6, 1.1 * spun_ns)
    assert first.low is not None
    assert first.low < spun_ns


def test_the_place_of_unknown_time_needs_no_stacks(job: tuple[Trace, str]) -> None:
    view = build_overview(job[0])
    first = view.unknown_places[0]
    assert (first.after, first.before) == ("backward", "optimizer")
    assert first.step_ns >= 40e6
    unknown = next(part for part in view.phases if part.name == "unknown").step_ns.value
    assert sum(place.step_ns for place in view.unknown_places) == pytest.approx(unknown, rel=1e-6)
    assert "from backward to optimizer" in report_text(view)


def test_no_frame_of_profkit_is_stored(job: tuple[Trace, str]) -> None:
    frames = job[0].frames.to_pylist()
    own = str(Path(stacks.__file__).parents[1])
    assert frames
    assert not [frame for frame in frames if f"{own}/instrument" in frame["file"]]
    assert {"job", "package"} <= {frame["origin"] for frame in frames}


def test_the_report_shows_the_lines(job: tuple[Trace, str]) -> None:
    view = build_overview(job[0])
    text = report_text(view)
    assert "Where in the code" in text
    assert f"slow_lines.py:{_line_of('# slow in forward')} {FORWARD}" in text


def test_losses_are_equal_to_the_bit(job: tuple[Trace, str], tmp_path: Path) -> None:
    bare = _train(tmp_path, str(STEPS), recorded=False)
    assert bare.stdout == job[1]
    assert len(bare.stdout.splitlines()) == STEPS + 1


def test_a_killed_job_leaves_its_stacks(tmp_path: Path) -> None:
    done = _train(tmp_path, "40", "killed")
    assert done.returncode != 0
    trace = Trace.open(find_runs(tmp_path / "traces")[-1])
    last = trace.steps["end_ns"].to_numpy().max()
    assert trace.stacks.num_rows > FEWEST_SAMPLES
    assert trace.stacks["time_ns"].to_numpy().max() > last - 3e9
    view = build_overview(trace).code
    assert view is not None
    assert not view.lost


def _inside(samples: list[Any], frames: list[Any], *, recording: bool = True) -> Inside:
    here = threading.get_ident()
    return Inside(
        here, "MainThread", lambda: recording, samples.append, frames.append, lambda: True
    )


def _read(sampler: StackSampler) -> None:
    thread = threading.Thread(target=lambda: list(sampler.read()))
    thread.start()
    thread.join()


def test_a_stack_has_the_same_frames_whatever_came_before_it() -> None:
    """Outer frames are known from the sample before; that must not show."""

    def places(*lines: int) -> list[tuple[CodeType, int]]:
        code = test_a_killed_job_leaves_its_stacks.__code__
        own = StackSampler.read.__code__
        return [(own if line == OWN else code, line) for line in reversed(lines)]

    samples = [(1, 2, 3), (1, 2, 4), (1, 2), (1, 2, 3, 5), (), (2, 1, 3), (1, OWN, 3), (1, OWN, 2)]
    rows: list[tuple[Any, ...]] = []
    table = _frame_table.FrameTable(rows.append)
    for lines in (*samples, *samples):
        seen: list[int] = []
        frame = table.store(places(*lines))
        while frame not in {None, _frame_table.NOTHING}:
            _, frame, _, _, line, _ = rows[frame]
            seen.insert(0, line)
        assert tuple(seen) == tuple(line for line in lines if line != OWN)
    assert [row[0] for row in rows] == list(range(len(rows)))


OWN = 0
"""Stands for a frame of profkit, which is not stored."""


@pytest.mark.parametrize("is_read", [True, False])
def test_nothing_is_sampled_in_control_steps_or_where_the_eye_reads(*, is_read: bool) -> None:
    sampler, samples = StackSampler(), list[Any]()
    inside = _inside(samples, samples, recording=is_read)
    sampler.watch(inside._replace(needs_lines=lambda: not is_read))
    _read(sampler)
    assert not samples


def test_a_full_dictionary_leaves_samples_without_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_frame_table, "MOST_FRAMES", 1)
    samples, frames = list[Any](), list[Any]()
    sampler = StackSampler()
    sampler.watch(_inside(samples, frames))
    _read(sampler)
    assert len(frames) == 1
    assert samples[0][-1] is None


def test_lines_are_sampled_unless_they_are_off() -> None:
    def chosen(words: str, lines: str = "on") -> set[str]:
        choice = Choice.parse(words, "", operators=False, lines=lines)
        found = usable_collectors(choice.collectors, lambda row: None)
        return {collector.name for collector in found}

    assert "stacks" in chosen("")
    assert chosen("host") == {"host", "stacks"}
    assert chosen("none") == {"stacks"}
    assert chosen("none", "off") == set()
    assert chosen("", "off") == chosen("") - {"stacks"}
    assert not Choice.read({"PROFKIT_LINES": "off"}).lines
    assert Choice.read({"PROFKIT_LINES": "other"}).collectors == ()


def test_origins() -> None:
    origins = Origins()
    assert origins.of("/work/train.py") == "job"
    assert origins.of("/work/my-site-packages-tools/train.py") == "job"
    assert origins.of(os.path.realpath(os.__file__)) == "python"
    assert origins.of("<stdin>") == "job"
    assert origins.of("/x/.venv/bin/ipython") == "package"
    assert origins.of("/x/.venv/lib/python3.11/site-packages/torch/nn.py") == "package"
    assert origins.of(os.__file__) == "python"
    assert origins.of("<frozen importlib._bootstrap>") == "python"
    assert origins.of(stacks.__file__) == ""
    assert origins.shown(os.path.expanduser("~/a/train.py")) == "~/a/train.py"
    assert len(origins.shown("/x" * 1000)) <= MAX_CHARS + 3


def test_export(job: tuple[Trace, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "profkit", "export", str(job[0].path), "--stacks"]
    subprocess.run([*command, "-w", str(tmp_path / "out")], check=True, capture_output=True)
    lines = (tmp_path / "out" / "collapsed.txt").read_text().splitlines()
    slow = [line for line in lines if f"slow_lines.py:{_line_of('# slow in forward')})" in line]
    assert slow
    assert all(line.rpartition(" ")[2].isdigit() for line in lines)
    page = (tmp_path / "out" / "flame.html").read_text()
    assert "<script" not in page
    assert FORWARD in page
    content = json.loads((tmp_path / "out" / "speedscope.json").read_text())
    profile = content["profiles"][0]
    assert profile["endValue"] == sum(profile["weights"])
    known = range(len(content["shared"]["frames"]))
    assert all(frame in known for sample in profile["samples"] for frame in sample)
