"""Lines of code from samples with a known truth, without a job."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from profkit.analysis.line_changes import compare_lines
from profkit.analysis.overview import build_overview
from profkit.analysis.stacks import FEWEST_SAMPLES, CodeView, estimate_share, wilson
from profkit.clock import Anchor
from profkit.explain.explained import explain
from profkit.exporters._flame import flame_page
from profkit.report import as_html, as_json, as_text
from profkit.report.ledger_document import explained
from profkit.report.overview_document import overview
from profkit.trace import RankManifest, RunManifest, Trace
from profkit.trace.files import RankFiles
from profkit.vocab import RunState, rank_folder

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
    clip_ms: int = 30,
) -> Trace:
    """Write a run of equal steps with these samples (step, ms in it, stack), or one each 10 ms."""
    folder.mkdir()
    files = RankFiles(folder / rank_folder(0), 0)
    RankManifest(0, "host", 1, "cpu", Anchor(0, 0, 0), 0, 1, "pytorch").write(files.folder)
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
                "late_ns": [0] * len(samples),
                "every_ns": [10 * MS] * len(samples),
                "thread": ["MainThread"] * len(samples),
                "stack": [stack for _, _, stack in samples],
            },
        )
    names = ("id", "parent", "file", "function", "line", "origin")
    files.write("frames", dict(zip(names, zip(*frames, strict=True), strict=True)))
    files.close()
    RunManifest(workload="test", state=RunState.COMPLETE, world_size=1, config={"warmup": 0}).write(
        folder
    )
    return Trace.open(folder)


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


def test_files_are_shown_below_their_common_folder(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run"))
    text = as_text.overview(view)
    assert "Files are below /home/x/" in text
    assert "model.py:31 Net.forward (Linear.forward)" in text
    assert "unknown is between the phases: 30.0 ms from forward to the step's end" in text
    figures = as_json.overview(view)
    assert figures["code"]["phases"][0]["lines"]
    assert figures["unknown_places"][0]["after"] == "forward"


def test_few_samples_name_no_line(tmp_path: Path) -> None:
    few = [(step, 80, 3) for step in range(12)]
    view = build_overview(write_run(tmp_path / "run", samples=few))
    text = as_text.overview(view)
    assert f"unknown: 12 samples only, so no line is named: at least {FEWEST_SAMPLES}" in text
    assert "clip" not in text


def test_a_run_without_stacks_has_no_section(tmp_path: Path) -> None:
    view = build_overview(write_run(tmp_path / "run", samples=[]))
    assert view.code is None
    assert "Where in the code" not in as_text.overview(view)
    assert view.unknown_places[0].step_ns == 30 * MS


def test_lost_stacks_are_counted(tmp_path: Path) -> None:
    samples: list[tuple[int, int, int | None]] = [(step, 80, 3) for step in range(40)]
    samples += [(1, 81, None), (1, 82, 77)]
    view = build_overview(write_run(tmp_path / "run", samples=samples))
    assert view.code is not None
    assert view.code.lost == 2
    assert "2 more samples had a stack that was not stored" in as_text.overview(view)


def test_a_stack_without_the_jobs_code_names_none(tmp_path: Path) -> None:
    frames = [(0, None, "/lib/site-packages/a.py", "train", 3, "package")]
    samples = [(step, 80, 0) for step in range(40)]
    text = as_text.overview(
        build_overview(write_run(tmp_path / "run", samples=samples, frames=frames))
    )
    assert "no line of the job's own code (train)" in text


def test_hostile_names_are_shown_safely(tmp_path: Path) -> None:
    evil = "/home/x/\x1b[31m<script>alert(1)</script>\u202e|.py"
    frames = [(0, None, evil, "f\n\x07|`<b>", 3, "job")]
    samples = [(step, 80, 0) for step in range(40)]
    content = overview(build_overview(write_run(tmp_path / "run", samples=samples, frames=frames)))
    text, page = as_text.document(content), as_html.document(content, "1")
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
@pytest.mark.parametrize("count", [1.0, 12.0, 1000.0])
def test_an_interval_is_within_its_bounds(share: float, count: float) -> None:
    found = wilson(share, count)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= share + 1e-12
    assert share - 1e-12 <= found.high <= 1


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


# -- two runs --------------------------------------------------------------------------------------


def test_the_line_that_grew_differs_and_no_other(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base")
    target = write_run(tmp_path / "target", clip_ms=60)
    found = compare_lines(_code(base), _code(target))
    sure = [change for change in found.lines if change.is_sure]
    assert [(change.phase, change.place.function) for change in sure] == [("unknown", "clip")]
    assert sure[0].difference.value == pytest.approx(30 * MS)
    text = as_text.document(explained(explain(base, target)))
    assert "Lines whose time differs" in text
    assert "train.py:22 clip" in text


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
    found = compare_lines(view, dataclasses.replace(view, phases=(few, *view.phases[1:])))
    assert found.too_few == ((few.phase, view.phases[0].samples, 3),)


# -- flame graphs ----------------------------------------------------------------------------------


def test_a_flame_graph_escapes_names_and_nests_boxes() -> None:
    stacks = Counter({("main", "<b>&"): 30 * MS, ("main",): 10 * MS})
    page = flame_page({0: stacks}, "<i>run")
    tree = ET.fromstring(page[page.index("<svg") : page.index("</body>")])
    widths = [float(box.attrib["width"]) for box in tree.iter("rect")]
    assert widths == [1200.0, 1200.0, 1200.0, 900.0]
    assert "<b>" not in page
    assert "<i>" not in page
