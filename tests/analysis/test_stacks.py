"""Lines of code from samples with a known truth, without a job."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from profkit.analysis.line_changes import compare_lines
from profkit.analysis.overview import build_overview
from profkit.analysis.stack_samples import Place
from profkit.analysis.stacks import (
    FEWEST_SAMPLES,
    CodeView,
    LineTime,
    PhaseLines,
    estimate_share,
    wilson,
)
from profkit.clock import Anchor
from profkit.explain.explained import explain
from profkit.exporters.stacks import flame_page
from profkit.frame.estimate import Estimate, Floats
from profkit.report.ledger_document import explained
from profkit.report.overview_document import illustrate, overview
from profkit.show import html, markdown
from profkit.show import text as show_text
from profkit.trace import RankManifest, RunManifest, Trace
from profkit.trace.files import RankFiles
from profkit.vocab import RunState, rank_folder
from tests.documents import drawings, report_json, report_text

MS = 1_000_000
STEP_MS, DATA_MS, FORWARD_MS = 100, 30, 40
"""The last 30 ms of a step belong to no phase."""

Frame = tuple[int, int | None, str, str, int, str]
MAIN: Frame = (0, None, "/home/x/train.py", "main", 10, "job")
SLOW: Frame = (1, 0, "/home/x/model.py", "Net.forward", 31, "job")
TORCH: Frame = (2, 1, "/lib/site-packages/torch/nn.py", "Linear.forward", 5, "package")
CLIP: Frame = (3, 0, "/home/x/train.py", "clip", 22, "job")
FRAMES = (MAIN, SLOW, TORCH, CLIP)


def write_run(
    folder: Path,
    *,
    steps: int = 40,
    samples: Sequence[tuple[int, int, int | None]] | None = None,
    frames: Sequence[Frame] = FRAMES,
    clip_ms: int | Sequence[int] = 30,
    late_ms: Sequence[int] = (),
    every_ms: int = 10,
) -> Trace:
    """Write a run of equal steps with these samples (step, ms in it, stack), or one each 10 ms.

    Several lengths of `clip` make as many ranks. `late_ms` says by how much each sample came late.
    """
    folder.mkdir()
    lengths = [clip_ms] if isinstance(clip_ms, int) else clip_ms
    for rank, own_ms in enumerate(lengths):
        _write_rank(folder, rank, steps, samples, frames, own_ms, late_ms, every_ms)
    RunManifest(
        workload="test",
        state=RunState.COMPLETE,
        world_size=len(lengths),
        config={"warmup": 0},
    ).write(folder)
    return Trace.open(folder)


def _write_rank(
    folder: Path,
    rank: int,
    steps: int,
    samples: Sequence[tuple[int, int, int | None]] | None,
    frames: Sequence[Frame],
    clip_ms: int,
    late_ms: Sequence[int],
    every_ms: int,
) -> None:
    files = RankFiles(folder / rank_folder(rank), rank)
    RankManifest(rank, "host", 1, "cpu", Anchor(0, 0, 0), 0, 1, "pytorch").write(files.folder)
    number = range(steps)
    length = DATA_MS + FORWARD_MS + clip_ms
    start = [length * MS * step for step in number]
    files.write(
        "steps",
        {
            "step": number,
            "start_ns": start,
            "end_ns": [at + length * MS for at in start],
            "sample_count": [4] * steps,
            "instrumented": [True] * steps,
        },
    )
    for phase, begin, end in (("data", 0, DATA_MS), ("forward", DATA_MS, DATA_MS + FORWARD_MS)):
        files.write(
            "spans",
            {
                "step": number,
                "phase": [phase] * steps,
                "name": [phase] * steps,
                "depth": [0] * steps,
                "thread": ["MainThread"] * steps,
                "start_ns": [at + begin * MS for at in start],
                "end_ns": [at + end * MS for at in start],
            },
        )
    if samples is None:
        samples = []
        for step in number:
            samples += [(step, at, _truth(at)) for at in range(5, length, 10)]
    if samples:
        files.write(
            "stacks",
            {
                "time_ns": [step * length * MS + at * MS for step, at, _ in samples],
                "late_ns": [late * MS for late in late_ms or [0] * len(samples)],
                "every_ns": [every_ms * MS] * len(samples),
                "thread": ["MainThread"] * len(samples),
                "stack": [stack for _, _, stack in samples],
            },
        )
    names = ("id", "parent", "file", "function", "line", "origin")
    files.write("frames", dict(zip(names, zip(*frames, strict=True), strict=True)))
    files.close()


def _truth(at: int) -> int:
    """Most of the forward is the layer's, below the user's line; the rest of a step is `clip`."""
    if at < DATA_MS:
        return 0
    return (1 if at < DATA_MS + 10 else 2) if at < DATA_MS + FORWARD_MS else 3


def _code(trace: Trace) -> CodeView:
    found = build_overview(trace).code
    assert found is not None
    return found


def test_lines_of_each_phase(tmp_path: Path) -> None:
    parts = {part.phase: part for part in _code(write_run(tmp_path / "run")).phases}
    assert parts["data"].lines[0].place.line == 10
    forward = parts["forward"].lines
    assert [(line.place.line, line.place.below) for line in forward] == [(31, "Linear.forward")]
    assert forward[0].step_ns.value == FORWARD_MS * MS
    assert parts["unknown"].lines[0].place.function == "clip"
    assert parts["unknown"].samples == 3 * 40


@pytest.mark.parametrize("starter", ["/opt/bin/acme-train", "<frozen runpy>"])
def test_the_lines_of_an_installed_job_are_those_of_its_package(
    tmp_path: Path, starter: str
) -> None:
    packages = "/opt/lib/python3.11/site-packages"
    origin = "job" if starter.startswith("/") else "python"
    frames: tuple[Frame, ...] = (
        (0, None, starter, "<module>", 8, origin),
        (1, 0, f"{packages}/acme/loop.py", "Net.forward", 31, "package"),
        (2, 1, f"{packages}/torch/nn.py", "Linear.forward", 5, "package"),
        (3, 1, f"{packages}/acme/ops.py", "clip", 22, "package"),
    )
    view = build_overview(write_run(tmp_path / "run", frames=frames)).code
    assert view is not None
    named: set[tuple[str, int, str]] = set()
    for part in view.phases:
        named.update(
            (line.place.function, line.place.line, line.place.below) for line in part.lines
        )
    assert named >= {("Net.forward", 31, "Linear.forward"), ("clip", 22, "")}
    assert view.folder == f"{packages}/acme/"


def test_files_are_shown_below_their_common_folder(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run"))
    text = report_text(view)
    assert "Files are below /home/x/" in text
    assert "model.py:31 Net.forward (Linear.forward)" in text
    assert "unknown is between the phases: 30.0 ms from forward to the step's end" in text
    figures = report_json(view)
    assert figures["code"]["phases"][0]["lines"]
    assert figures["unknown_places"][0]["after"] == "forward"


def test_a_function_of_many_lines_is_shown_as_a_whole(tmp_path: Path) -> None:
    """No line of it has a twentieth of the phase."""
    many = [(3 + at, 0, "/home/x/train.py", "clip", 50 + at, "job") for at in range(30)]
    samples = []
    for step in range(60):
        samples += [(step, 75 + at, 3 + (8 * step + at) % 30) for at in range(0, 24, 3)]
    trace = write_run(tmp_path / "run", samples=samples, frames=(MAIN, SLOW, TORCH, *many))
    view = build_overview(trace)
    text = report_text(view)
    assert "100.0 %" in text
    assert re.search(r"train\.py:\d+ clip, whole function, lines 50 to 79", text)
    assert "which count here again" in text
    unknown = report_json(view)["code"]["phases"]
    (part,) = (part for part in unknown if part["phase"] == "unknown")
    (whole,) = part["functions"]
    assert whole["whole_function"] == [50, 79]
    assert whole["share"]["value"] == pytest.approx(1)
    lone = report_text(build_overview(write_run(tmp_path / "lone")))
    assert "whole function" not in lone  # a function of one line is that line


@pytest.mark.parametrize(
    ("outer", "inner", "named"),
    [
        ("clip", "clip.<locals>.<genexpr>", {"clip"}),
        ("Job.clip", "Job.clip.<locals>.<listcomp>.<locals>.<dictcomp>", {"Job.clip"}),
        ("<module>", "<setcomp>", {"<module>"}),
        ("Net", "Net.<genexpr>", {"Net"}),  # in the body of a class
        ("clip", "<genexpr>", {"clip"}),  # before Python 3.11
        ("clip", "clip.<locals>.<lambda>", {"clip", "clip.<locals>.<lambda>"}),
    ],
)
def test_a_comprehension_is_part_of_its_function(
    tmp_path: Path, outer: str, inner: str, named: set[str]
) -> None:
    """Else `sum(v * v for v in tensor.tolist())` would be two lines with a part of the time each.

    Newer Pythons run most comprehensions in the frame of their function.
    """
    calls: Frame = (3, 0, "/home/x/train.py", outer, 41, "job")
    runs: Frame = (4, 3, "/home/x/train.py", inner, 41, "job")
    samples = [(step, 75 + 10 * half, 3 + half) for step in range(40) for half in (0, 1)]
    trace = write_run(tmp_path / "run", samples=samples, frames=(*FRAMES[:3], calls, runs))
    (part,) = [part for part in _code(trace).phases if part.phase == "unknown"]
    assert [line.place.line for line in part.lines] == [41] * len(named)
    assert {line.place.function for line in part.lines} == named


def test_few_samples_name_no_line(tmp_path: Path) -> None:
    few = [(step, 80, 3) for step in range(12)]
    view = build_overview(write_run(tmp_path / "run", samples=few))
    text = report_text(view)
    assert f"unknown: 12 samples only, so no line is named: at least {FEWEST_SAMPLES}" in text
    assert "clip" not in text


def test_a_run_without_stacks_has_no_section(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run", samples=[]))
    assert view.code is None
    assert "Where in the code" not in report_text(view)
    assert view.unknown_places[0].step_ns == 30 * MS


def test_lost_stacks_are_counted(tmp_path: Path) -> None:
    samples: list[tuple[int, int, int | None]] = [(step, 80, 3) for step in range(40)]
    samples += [(1, 81, None), (1, 82, 77)]
    view = build_overview(write_run(tmp_path / "run", samples=samples))
    assert view.code is not None
    assert view.code.lost == 2
    assert "2 more samples had a stack that was not stored" in report_text(view)


def test_a_stack_without_the_jobs_code_names_none(tmp_path: Path) -> None:
    frames = [(0, None, "/lib/site-packages/torch/a.py", "train", 3, "package")]
    samples = [(step, 80, 0) for step in range(40)]
    text = report_text(build_overview(write_run(tmp_path / "run", samples=samples, frames=frames)))
    assert "no line of the job's own code (train)" in text


def test_hostile_names_are_shown_safely(tmp_path: Path) -> None:
    evil = "/home/x/\x1b[31m<script>alert(1)</script>\u202e|.py"
    frames = [(0, None, evil, "f\n\x07|`<b>", 3, "job")]
    samples = [(step, 80, 0) for step in range(40)]
    content = overview(build_overview(write_run(tmp_path / "run", samples=samples, frames=frames)))
    text, page = show_text.document(content), html.document(content, "1")
    for shown in (text, page):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "\\x1b[31m" in text
    assert "<script>alert" not in page


def test_a_damaged_tree_ends(tmp_path: Path) -> None:
    frames = [(0, 1, "/a.py", "f", 1, "package"), (1, 0, "/a.py", "g", 2, "package")]
    samples = [(step, 80, 1) for step in range(40)]
    found = _code(write_run(tmp_path / "run", samples=samples, frames=frames))
    assert found.samples == 40


# -- intervals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("count", [1.0, 12.0, 16.4852, 1000.0, *np.linspace(13, 90, 20)])
def test_an_interval_is_within_its_bounds(share: float, count: float) -> None:
    found = wilson(share, count)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= share <= found.high <= 1


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        hits = rng.random(200) < 0.3
        found, _ = estimate_share(hits, np.ones(200), np.arange(200) // 2)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.3 <= found.high
    assert 0.91 <= held / 400 <= 1


def test_many_samples_of_one_step_are_one_observation() -> None:
    """A line that runs for 100 samples, all in one step of 20, is seen once."""
    step = np.repeat(np.arange(20), 100)
    together = estimate_share(step == 7, np.ones(2000), step)[0]
    spread = estimate_share(np.arange(2000) % 20 == 7, np.ones(2000), step)[0]
    assert together.value == spread.value
    assert together.high is not None
    assert spread.high is not None
    assert together.high > 2 * spread.high


def test_a_rare_sample_counts_for_its_time() -> None:
    hits = np.array([True, False, False])
    found, _ = estimate_share(hits, np.array([2.0, 1.0, 1.0]), np.arange(3))
    assert found.value == 0.5


def _with_busy_python(folder: Path, *, delays: Sequence[int] = (), busy_ms: int = 20) -> Trace:
    """Write a run whose step ends with 20 ms of busy Python on line 31 and 10 ms on line 22.

    Samples that are due in the busy line come after 5 ms, or when it ends. On a busy machine some
    are delayed by so many ms more, and see the line of that time.
    """
    begin, end = DATA_MS + FORWARD_MS, DATA_MS + FORWARD_MS + busy_ms
    samples: list[tuple[int, int, int | None]] = []
    late_ms = []
    random, length, moment = np.random.default_rng(7), end + 10, 0
    while moment < 80 * length:
        step, due = divmod(moment + int(random.integers(5, 16)), length)
        seen = due
        if begin <= due < end:
            seen = min(due + 5, end)
            if delays:
                seen = min(end + 9, seen + delays[step % len(delays)])
        moment = step * length + seen
        if begin <= due and step < 80:
            samples.append((step, seen, 1 if seen < end else 3))
            late_ms.append(seen - due)
    return write_run(folder, steps=80, samples=samples, late_ms=late_ms, clip_ms=busy_ms + 10)


@pytest.mark.parametrize("every_ms", [1, 2, 20])
def test_dense_samples_of_busy_python_count_for_their_time(tmp_path: Path, every_ms: int) -> None:
    """They come every 6 ms, those of other code every millisecond: a sixth of its time, else."""
    samples: list[tuple[int, int, int | None]] = []
    late_ms = []
    random, moment = np.random.default_rng(3), 0
    busy, end = DATA_MS + FORWARD_MS, DATA_MS + FORWARD_MS + 20
    while moment < 400 * STEP_MS:
        step, due = divmod(moment + int(random.integers(1, 2 * every_ms)), STEP_MS)
        seen = min(due + 5, end) if busy <= due < end else due
        moment = step * STEP_MS + seen
        samples.append((step, seen, 1 if busy <= due < end else 3))
        late_ms.append(seen - due)
    trace = write_run(
        tmp_path / "run", steps=400, samples=samples, late_ms=late_ms, every_ms=every_ms
    )
    part = next(each for each in _code(trace).phases if each.phase == "unknown")
    shares = {line.place.line: line.share.value for line in part.lines}
    assert shares[31] == pytest.approx(20 / 30, abs=0.04)


@pytest.mark.parametrize("delays", [(), (0, 9, 0, 14)])
def test_intervals_hold_the_truth_though_samples_come_late(
    tmp_path: Path, delays: Sequence[int]
) -> None:
    view = _code(_with_busy_python(tmp_path / "run", delays=delays))
    part = next(each for each in view.phases if each.phase == "unknown")
    times = {line.place.line: line.step_ns for line in part.lines}
    for line, truth_ms in ((31, 20), (22, 10)):
        low, high = times[line].low, times[line].high
        assert low is not None
        assert high is not None
        assert low <= truth_ms * MS <= high


def test_a_busy_machine_changes_no_line(tmp_path: Path) -> None:
    quiet = _code(_with_busy_python(tmp_path / "quiet"))
    loaded = _code(_with_busy_python(tmp_path / "loaded", delays=(0, 9, 0, 14)))
    assert not [change for change in compare_lines(quiet, loaded).lines if change.is_sure]


@pytest.mark.parametrize("busy_ms", [9, 20])
def test_a_busy_line_is_named_although_its_samples_come_late(tmp_path: Path, busy_ms: int) -> None:
    """Of 9 ms of Python, the samples of the last 5 ms show no line."""
    base = _code(write_run(tmp_path / "base", clip_ms=10))
    target = _code(_with_busy_python(tmp_path / "target", busy_ms=busy_ms))
    sure = [change for change in compare_lines(base, target).lines if change.is_sure]
    assert (31, True) in {(change.place.line, change.difference.value > 0) for change in sure}


# -- two runs --------------------------------------------------------------------------------------


def test_the_line_that_grew_differs_and_no_other(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base")
    target = write_run(tmp_path / "target", clip_ms=60)
    found = compare_lines(_code(base), _code(target))
    sure = [change for change in found.lines if change.is_sure]
    assert [(change.phase, change.place.function) for change in sure] == [("unknown", "clip")]
    assert sure[0].difference.value == pytest.approx(30 * MS)
    text = show_text.document(explained(explain(base, target)))
    assert "Lines whose time differs" in text
    assert "train.py:22 clip" in text


def test_lines_of_other_phases_make_no_line_doubtful(tmp_path: Path) -> None:
    """Where only one phase changed, the lines of the others are not compared."""
    many = [(number, 0, "/home/x/data.py", "read", number, "job") for number in range(4, 19)]
    sides = []
    for name, hits in (("base", 8), ("target", 18)):
        samples: list[tuple[int, int, int | None]] = [
            (step, at, 4 + step % 15) for step in range(40) for at in range(2, 28)
        ]
        samples += [(step, 75, 3 if step < hits else 0) for step in range(40)]
        sides.append(_code(write_run(tmp_path / name, frames=[*FRAMES, *many], samples=samples)))
    for only, is_sure in ((None, False), (["unknown"], True)):
        found = compare_lines(sides[0], sides[1], same_code=True, only=only)
        (clip,) = (change for change in found.lines if change.place.function == "clip")
        assert clip.is_sure == is_sure


def test_checkouts_in_two_folders_are_the_same_files(tmp_path: Path) -> None:
    base = _code(write_run(tmp_path / "base"))
    moved = []
    for number, parent, file, function, line, origin in FRAMES:
        moved.append((number, parent, file.replace("/home/x", "/work/y"), function, line, origin))
    target = _code(write_run(tmp_path / "target", frames=moved, clip_ms=60))
    sure = [change for change in compare_lines(base, target).lines if change.is_sure]
    assert [(change.place.file, change.place.line) for change in sure] == [("train.py", 22)]


def test_equal_runs_have_no_line_that_differs(tmp_path: Path) -> None:
    view = _code(write_run(tmp_path / "run"))
    assert not [change for change in compare_lines(view, view).lines if change.is_sure]


def test_phases_with_few_samples_are_not_compared(tmp_path: Path) -> None:
    view = _code(write_run(tmp_path / "run"))
    few = dataclasses.replace(view.phases[0], samples=3, lines=())
    sparse = dataclasses.replace(view, phases=(few, *view.phases[1:]))
    found = compare_lines(sparse, sparse)
    assert found.too_few == ((few.phase, 3, 3),)


def test_a_line_that_the_base_lacks_is_named_though_its_phase_is_short_there(
    tmp_path: Path,
) -> None:
    base = _code(write_run(tmp_path / "base", clip_ms=0))
    target = _code(write_run(tmp_path / "target"))
    assert {part.phase: part.judged for part in base.phases}["unknown"] is False
    found = compare_lines(base, target)
    sure = [change for change in found.lines if change.is_sure]
    assert [(change.phase, change.place.function) for change in sure] == [("unknown", "clip")]
    assert sure[0].difference.value == pytest.approx(30 * MS)
    assert found.too_few == ()


def test_late_samples_make_the_lines_of_two_runs_less_certain(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base")
    view = explain(base, write_run(tmp_path / "target", clip_ms=60))
    assert "came too late" not in show_text.document(explained(view))
    late = view.case.after
    assert late.code is not None
    vars(late)["code"] = dataclasses.replace(late.code, unsure=late.code.samples // 5)
    text = " ".join(show_text.document(explained(view)).split())
    assert "Many samples of the target came too late to show their line" in text
    assert "Many samples of the base" not in text


def test_a_short_run_says_that_it_has_too_few_samples(tmp_path: Path) -> None:
    base = _code(write_run(tmp_path / "base", clip_ms=0, steps=3))
    found = compare_lines(base, _code(write_run(tmp_path / "target")))
    assert found.lines == ()
    assert {phase for phase, _, _ in found.too_few} == {"data", "forward", "unknown"}


def _random_view(rng: np.random.Generator, shares: Floats) -> CodeView:
    """Return the lines of a phase of 400 samples, drawn from these shares."""
    drawn = rng.choice(len(shares), size=400, p=shares)
    lines = []
    for number, share in enumerate(np.bincount(drawn, minlength=len(shares)) / len(drawn)):
        found = wilson(float(share), len(drawn))
        assert found.low is not None
        assert found.high is not None
        ns = Estimate(found.value * 50 * MS, found.low * 50 * MS, found.high * 50 * MS)
        if share:
            lines.append(LineTime(Place("train.py", number + 1, "f"), found, ns, 1))
    part = PhaseLines("forward", 50.0 * MS, 1.0, 400, 400.0, tuple(lines))
    return CodeView(400, 0, 0, (part,), "")


def test_chance_names_a_line_in_few_comparisons_of_equal_runs() -> None:
    """Thirty lines are compared at once; at 95 % each, most comparisons would name one."""
    rng = np.random.default_rng(5)
    shares = np.ones(30) / 30
    wrong = 0
    for _ in range(100):
        found = compare_lines(_random_view(rng, shares), _random_view(rng, shares))
        wrong += any(change.is_sure for change in found.lines)
    assert wrong <= 12


def test_a_line_that_grew_is_found_among_thirty() -> None:
    rng = np.random.default_rng(6)
    shares, grown = np.ones(30) / 30, np.ones(30)
    grown[7] = 8
    target = _random_view(rng, grown / grown.sum())
    found = compare_lines(_random_view(rng, shares), target, factor=37 / 30)
    sure = [change.place.line for change in found.lines if change.is_sure]
    assert sure[0] == 8


def _metrics(first: int, *, lines: int) -> list[Frame]:
    """Return the frames of a function that spreads over so many lines."""
    own: list[Frame] = [(0, None, "/home/x/train.py", "main", 10, "job")]
    for line in range(lines):
        own.append((line + 1, 0, "/home/x/train.py", "metrics", first + line, "job"))
    return own


def _spread(length: int, *, lines: int) -> list[tuple[int, int, int]]:
    """Return samples of which those after the forward are spread over the lines of a function."""
    samples = []
    for step in range(40):
        for at in range(5, length, 10):
            in_metrics = at > DATA_MS + FORWARD_MS
            samples.append((step, at, 1 + step % lines if in_metrics else 0))
    return samples


def test_a_function_is_named_if_none_of_its_lines_is_sure(tmp_path: Path) -> None:
    base = _code(write_run(tmp_path / "base", clip_ms=0))
    samples = _spread(DATA_MS + FORWARD_MS + 10, lines=20)
    frames = _metrics(40, lines=20)
    target = _code(write_run(tmp_path / "run", clip_ms=10, frames=frames, samples=samples))
    found = compare_lines(base, target)
    sure = [change for change in found.lines if change.is_sure and change.phase == "unknown"]
    assert [change.place.lines for change in sure] == [(40, 59)]
    assert sure[0].difference.value == pytest.approx(10 * MS)
    assert re.fullmatch(
        r"/?train.py:\d+ metrics, whole function, lines 40 to 59", sure[0].place.words("/home/x")
    )
    assert found.moved == ()


@pytest.mark.parametrize(("target_ms", "grown"), [(30, []), (60, [30 * MS])])
def test_lines_that_an_edit_moved_are_compared_by_function(
    tmp_path: Path, target_ms: int, grown: list[int]
) -> None:
    """The lines 40 to 42 of the base are 41 to 43 in the target: two numbers are in both."""
    base = write_run(
        tmp_path / "base",
        frames=_metrics(40, lines=3),
        samples=_spread(DATA_MS + FORWARD_MS + 30, lines=3),
    )
    target = write_run(
        tmp_path / "target",
        clip_ms=target_ms,
        frames=_metrics(41, lines=3),
        samples=_spread(DATA_MS + FORWARD_MS + target_ms, lines=3),
    )
    view = explain(base, target)
    assert view.lines is not None
    assert [place.function for place in view.lines.moved] == ["metrics"]
    sure = [change for change in view.lines.lines if change.is_sure]
    assert [change.difference.value for change in sure] == pytest.approx(grown)
    text = " ".join(show_text.document(explained(view)).split())
    assert "metrics: lines make up for each other, as after an edit." in text
    assert ("whole function, lines 41 to 43" in text) is bool(grown)


# -- ranks -----------------------------------------------------------------------------------------


def test_the_line_of_one_rank_is_named(tmp_path: Path) -> None:
    trace = write_run(tmp_path / "run", clip_ms=(30, 30, 60))
    view = build_overview(trace)
    assert [(change.phase, change.place.line) for change in view.rank_lines[2]] == [("unknown", 22)]
    assert view.rank_lines[2][0].difference.value == pytest.approx(30 * MS)
    text = report_text(view)
    assert "Lines of single ranks" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("2 "))
    assert "60.0 ms" in row
    assert "train.py:22 clip" in row
    shown = report_json(view)["code_of_ranks"]
    assert next(each for each in shown if each["rank"] == 2)["lines"][0]["line"] == 22


def test_a_rank_whose_line_the_others_lack_is_named(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run", clip_ms=(0, 0, 30)))
    assert [change.place.line for change in view.rank_lines[2]] == [22]


def test_equal_ranks_have_no_line_of_their_own(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run", clip_ms=(30, 30)))
    assert view.rank_lines == {}
    assert "Lines of single ranks" not in report_text(view)


def test_a_late_rank_is_explained_by_its_line(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", clip_ms=(30, 30))
    target = write_run(tmp_path / "target", clip_ms=(30, 60))
    (cell,) = explain(base, target).told_cells
    assert (cell.row, cell.ranks, cell.where) == ("unknown", (1,), "train.py:22 clip")


# -- flame graphs ----------------------------------------------------------------------------------


def test_a_flame_graph_of_a_phase_has_the_times_of_its_stacks(tmp_path: Path) -> None:
    trace = write_run(tmp_path / "run")
    view = build_overview(trace)
    flames = {flame.phase: flame for flame in illustrate(trace, view).flames}
    boxes = {box.place.function: box for box in flames["forward"].boxes}
    assert boxes["main"].share == 1
    assert boxes["Net.forward"].share == 1
    assert boxes["Linear.forward"].share == pytest.approx(0.75)
    assert [boxes[name].is_own for name in ("Net.forward", "Linear.forward")] == [True, False]
    assert [boxes[name].depth for name in ("main", "Net.forward", "Linear.forward")] == [0, 1, 2]
    page = html.document(overview(view, illustrate(trace, view)), "1")
    drawing = next(found for found in drawings(page) if "flame-own" in found)
    titles = [each.text for each in ET.fromstring(drawing).iter("title")]
    expected = "/home/x/model.py:31 Net.forward: 100.0 %, 40.0 ms per step"
    assert expected in titles
    assert "<script" not in page


def test_markdown_has_no_section_of_charts_alone(tmp_path: Path) -> None:
    trace = write_run(tmp_path / "run")
    view = build_overview(trace)
    text = markdown.document(overview(view, illustrate(trace, view)))
    assert "Flame graphs" not in text
    assert "Where in the code" in text


def test_a_flame_graph_escapes_names_and_nests_boxes() -> None:
    stacks = Counter({("main", "<b>&"): 30 * MS, ("main",): 10 * MS})
    page = flame_page({"rank 0": stacks}, "<i>run")
    tree = ET.fromstring(page[page.index("<svg") : page.index("</body>")])
    widths = [float(box.attrib["width"]) for box in tree.iter("rect")]
    assert widths == [1200.0, 1200.0, 1200.0, 900.0]
    assert "<b>" not in page
    assert "<i>" not in page
