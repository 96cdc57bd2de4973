"""Reports as Markdown, as one page of HTML, and in a job's summary: complete and safe."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.views.pictures import rank_phases, step_points
from profkit.cli import main
from profkit.errors import ExitCode
from profkit.frame.estimate import Estimate
from profkit.frame.run_frame import frame_of
from profkit.report.steady_section import steady_lanes
from profkit.show import charts
from profkit.show.document import Shares, Waterfall
from profkit.show.markdown import plain
from profkit.show.page_style import STYLE
from profkit.show.palette import PHASE_COLOURS
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.tui.themes import PALETTES
from profkit.vocab import PHASES
from tests.documents import drawings
from tests.hostile import INJECTIONS, UNSAFE

MS = 1_000_000
LARGEST_PAGE = 300_000

Call = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def profkit(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    hostile = {name: text for name, text in INJECTIONS.items() if name != "half a pair"}
    kinds: dict[str, dict[str, Any]] = {
        "base": {},
        "late": {
            "seed": 2,
            "phase_ns": {"data": 9 * MS},
            "rank_phase_ns": {1: {"forward": 18 * MS}},
            "config": {"device": "cpu", "workers": 0},
        },
        "short": {"steps": 6, "seed": 3},
        "captured": {"ranks": 1, "steps": 40, "kernels_per_step": 20, "seed": 5},
        "captured late": {
            "ranks": 1,
            "steps": 40,
            "kernels_per_step": 20,
            "seed": 6,
            "phase_ns": {"backward": 40 * MS},
        },
        "hostile": {
            "seed": 4,
            "workload": "".join(hostile.values()),
            "framework": INJECTIONS["script"],
            "config": {**hostile, **dict.fromkeys(hostile.values(), 1)},
        },
    }
    return {
        name: synthetic_trace(
            folder / name,
            **{"ranks": 2, "steps": 120, "config": {"device": "cpu", "workers": 2}, **options},
        )
        for name, options in kinds.items()
    }


class _Page(HTMLParser):
    """The tags and attributes of a page, and the text that is seen."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "footer",
        "section",
        "details",
        "summary",
        "h1",
        "h2",
        "p",
        "div",
        "span",
        "b",
        "pre",
    ),
    *(
        "dl",
        "dt",
        "dd",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "rect",
        "line",
        "path",
        "text",
    ),
}


def _check_page(content: str) -> _Page:
    """Check that nothing in the page runs or loads: known tags, no handler, a fitting policy."""
    page = _Page(content)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {
        name
        for name in names
        if name.startswith("on")
        or name in {"src", "href", "style", "srcdoc", "action", "xlink:href"}
    }
    policy = next(
        attributes["content"]
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    style = content.split("<style>", 1)[1].split("</style>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "@import" not in style
    assert "url(" not in style
    assert not UNSAFE.search(content)
    assert len(content.encode()) < LARGEST_PAGE
    for drawn in drawings(content):
        ET.fromstring(drawn)
    return page


def _labels(content: str) -> list[str]:
    """Return what the page's pictures are of."""
    return re.findall(r'role="img" aria-label="([^"]*)"', content)


def test_a_page_of_one_run_has_every_figure_of_its_json(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    code, said, narration = profkit("report", runs["late"], "-w", tmp_path / "run.html")
    assert (code, said, narration) == (ExitCode.DONE, "", f"wrote {tmp_path / 'run.html'}\n")
    page = _check_page((tmp_path / "run.html").read_text())
    _, text, _ = profkit("report", runs["late"])
    for line in (
        "samples/s",
        "data quality",
        "profkit's cost",
        "waiting for data",
        "rank 1 is late",
        "What ran",
    ):
        assert line in page.text
    figures = re.findall(r"\d[\d,.]* (?:ms|us|%|samples/s)", text)
    assert len(figures) > 30
    assert {figure for figure in figures if figure not in re.sub(r"\s+", " ", page.text)} == set()
    labels = _labels((tmp_path / "run.html").read_text())
    for label in ("where a step goes", "of each rank", "wall time per step", "time of each rank"):
        assert any(label in each for each in labels), label


def test_a_page_of_two_runs_shows_rows_causes_gates_and_both_sides(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    code, _, _ = profkit(
        "explain", runs["base"], runs["late"], "--gate", "3%", "-w", tmp_path / "gap.html"
    )
    assert code == ExitCode.REGRESSION
    content = (tmp_path / "gap.html").read_text()
    page = _check_page(content)
    figures = json.loads(profkit("explain", runs["base"], runs["late"], "--json")[1])
    for found in figures["causes"]:
        assert found["kind"] in page.text
        assert found["evidence"] in page.text
    for row in figures["rows"]:
        assert row["name"] in page.text
    for words in (
        "regression",
        "✗ failed",
        "workers",
        "Ranks of the target",
        "base: data quality",
        "target: profkit's cost",
    ):
        assert words in page.text
    labels = _labels(content)
    for label in ("from the base to the target", "step base", "step target", "time of each rank"):
        assert any(label in each for each in labels), label


def test_a_page_without_a_verdict_says_so_and_stays_whole(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    assert (
        profkit(
            "explain", runs["base"], runs["short"], "--gate", "3%", "-w", tmp_path / "gap.html"
        )[0]
        == ExitCode.NOT_JUDGED
    )
    page = _check_page((tmp_path / "gap.html").read_text())
    assert "inconclusive" in page.text
    assert "? not judged" in page.text


def test_captured_phases_open_into_their_kernels(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    """The page and the Markdown have the kernels that the text has, each under its phase."""
    sides = runs["captured"], runs["captured late"]
    text, markdown = (
        profkit("explain", *sides, "--all")[1],
        profkit("explain", *sides, "--format", "markdown")[1],
    )
    profkit("explain", *sides, "-w", tmp_path / "gap.html")
    page = _check_page((tmp_path / "gap.html").read_text())
    named = {
        row["name"]
        for row in json.loads(profkit("explain", *sides, "--json")[1])["kernels"]["rows"]
    }
    shown = {name for name in named if f"\n  {name} " in text}
    assert len(shown) >= 2
    assert shown <= set(page.texts)
    assert all(f"| {plain(name)} |" in markdown for name in shown)
    folded = re.findall(r"<details><summary>(\w+): \d+ \w+ that changed</summary>", markdown)
    assert folded
    assert set(folded) <= {
        "data",
        "h2d",
        "forward",
        "backward",
        "allreduce",
        "optimizer",
        "no phase",
    }


def test_more_runs_make_a_page_and_markdown_too(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    for name in ("table.html", "table.md"):
        assert (
            profkit("explain", runs["base"], runs["late"], runs["base"], "-w", tmp_path / name)[0]
            == ExitCode.DONE
        )
        assert "speed-up" in (tmp_path / name).read_text()
    _check_page((tmp_path / "table.html").read_text())


def test_hostile_names_are_shown_and_do_nothing(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    for name, arguments in {
        "run": ["report", runs["hostile"]],
        "gap": ["explain", runs["base"], runs["hostile"]],
    }.items():
        profkit(*arguments, "-w", tmp_path / f"{name}.html")
        page = _check_page((tmp_path / f"{name}.html").read_text())
        assert "<script>alert(1)</script>" in page.text
        _, markdown, _ = profkit(*arguments, "--format", "markdown")
        assert not UNSAFE.search(markdown)
        assert not re.search(
            r"<(?!/?(?:details|summary)>)",
            re.sub(r"```text\n.*?\n```", "", markdown, flags=re.DOTALL),
        )
        assert not re.search(r"(?<!\\)\]\(", markdown)


def _cells(line: str) -> int:
    return len(re.split(r"(?<!\\)\|", line)) - 2


def test_each_row_of_a_markdown_table_has_the_cells_of_its_header(
    runs: dict[str, Path], profkit: Call
) -> None:
    for arguments in (
        ["report", runs["hostile"]],
        ["explain", runs["base"], runs["hostile"]],
        ["explain", runs["base"], runs["late"]],
    ):
        lines = profkit(*arguments, "--format", "markdown")[1].splitlines()
        rules = [place for place, line in enumerate(lines) if re.fullmatch(r"\|( -+:? \|)+", line)]
        assert len(rules) >= 3
        for place in rules:
            rows = itertools.takewhile(lambda line: line.startswith("|"), lines[place - 1 :])
            assert {_cells(line) for line in rows} == {_cells(lines[place])}


@pytest.mark.parametrize("text", INJECTIONS.values(), ids=INJECTIONS)
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    shown = plain(text)
    assert not UNSAFE.search(shown)
    assert not set("<>@") & set(shown)
    assert "://" not in shown
    assert not re.search(r"(?<!\\)[`*|\[\]]", shown.replace("\\\\", ""))


def test_ordinary_words_stay_readable_in_markdown() -> None:
    assert (
        plain("mask_rcnn on 2 ranks: 3.4 ms (95 % interval)")
        == "mask_rcnn on 2 ranks: 3.4 ms (95 % interval)"
    )


# --- where it goes --------------------------------------------------------------------------------


def test_github_gets_the_markdown_behind_what_is_there_and_the_log_the_text(
    runs: dict[str, Path], profkit: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, said, _ = profkit(
        "explain", runs["base"], runs["late"], "--gate", "3%", "--format", "github"
    )
    assert code == ExitCode.REGRESSION
    assert said == profkit("explain", runs["base"], runs["late"], "--gate", "3%")[1]
    assert (
        summary.read_text()
        == "before\n"
        + profkit("explain", runs["base"], runs["late"], "--gate", "3%", "--format", "markdown")[1]
        + "\n"
    )


def test_github_needs_its_variable(
    runs: dict[str, Path], profkit: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    code, said, narration = profkit("report", runs["base"], "--format", "github")
    assert (code, said) == (ExitCode.USAGE, "")
    assert "GITHUB_STEP_SUMMARY" in narration
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary"))
    code, _, narration = profkit("report", runs["base"], "--format", "github")
    assert code == ExitCode.UNFINISHED
    assert "No such file" in narration


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--json", "--format", "html"], ExitCode.USAGE, "not allowed with argument --json"),
        (
            ["--format", "html", "-w", "missing/page.html"],
            ExitCode.UNFINISHED,
            "name a file in a folder that exists",
        ),
        (["-w", "."], ExitCode.USAGE, "a folder; name a file in it"),
        (["--format", "github", "-w", "x.md"], ExitCode.USAGE, "leave --write out"),
    ],
)
def test_what_cannot_be_delivered_is_one_line(
    runs: dict[str, Path], profkit: Call, arguments: list[str], code: int, words: str
) -> None:
    found, said, narration = profkit("report", runs["base"], *arguments)
    assert (found, said, narration.count("\n")) == (code, "", 1)
    assert words in narration


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("run.md", "# "),
        ("run.json", "{"),
        ("run.txt", "A step takes "),
        ("run", "A step takes "),
        ("run.HTML", "<!doctype html>"),
    ],
)
def test_a_file_has_the_shape_that_its_name_ends_in(
    runs: dict[str, Path], profkit: Call, tmp_path: Path, name: str, begins: str
) -> None:
    profkit("report", runs["base"], "--write", tmp_path / name)
    content = (tmp_path / name).read_text()
    assert content.startswith(begins)
    assert content.endswith("\n")
    assert [path.name for path in tmp_path.iterdir()] == [name]


# --- what is drawn --------------------------------------------------------------------------------


def test_many_ranks_and_steps_make_a_small_page(tmp_path: Path, profkit: Call) -> None:
    run = synthetic_trace(
        tmp_path / "run", ranks=80, steps=400, rank_phase_ns={70: {"data": 20 * MS}}
    )
    profkit("report", run, "-w", tmp_path / "run.html")
    page = _check_page((tmp_path / "run.html").read_text())
    assert "The 64 ranks that differ most, of 80." in page.text
    assert "rank 70" in page.text


def test_points_keep_kinds_apart_and_every_step(runs: dict[str, Path]) -> None:
    trace = Trace.open(runs["base"])
    view = build_overview(trace)
    points = step_points(trace.steps, view.selection, places=20)
    assert sum(point.count for point in points) == view.steps_seen
    assert sum(point.count for point in points if point.kind == "used") == len(view.selection.steps)
    assert all(point.low_ns <= point.mean_ns <= point.high_ns for point in points)
    single = step_points(trace.steps, view.selection, places=10_000)
    wall = (trace.steps["end_ns"].to_numpy() - trace.steps["start_ns"].to_numpy()).reshape(2, -1)
    assert [point.mean_ns for point in single] == wall.mean(axis=0).tolist()


def test_the_phases_of_a_rank_close_against_its_own_wall_clock(runs: dict[str, Path]) -> None:
    trace = Trace.open(runs["late"])
    selection = build_overview(trace).selection
    found = rank_phases(frame_of(trace), selection.steps)
    assert found is not None
    rows = trace.steps.to_pylist()
    for rank, cells in zip(found.ranks, found.step_ns, strict=True):
        wall = [
            row["end_ns"] - row["start_ns"]
            for row in rows
            if row["rank"] == rank and row["step"] in selection.steps
        ]
        assert sum(cells) == pytest.approx(sum(wall) / len(wall))
    forward = found.phases.index("forward")
    assert found.spread[1][forward] > 0 > found.spread[0][forward]
    alone = dataclasses.replace(trace, ranks=trace.ranks[:1])
    assert rank_phases(frame_of(alone), selection.steps) is None


CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed to look at the page with")
def test_a_browser_shows_the_page_and_refuses_nothing_in_it(
    runs: dict[str, Path], profkit: Call, tmp_path: Path
) -> None:
    profkit("explain", runs["base"], runs["hostile"], "-w", tmp_path / "gap.html")
    pictures = {}
    for scheme, number in {"light": 1, "dark": 0}.items():
        picture = tmp_path / f"{scheme}.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / scheme}",
            "--window-size=1100,1600",
            "--enable-logging=stderr",
        ]
        flags += [f"--blink-settings=preferredColorScheme={number}", f"--screenshot={picture}"]
        done = subprocess.run(
            [str(CHROMIUM), *flags, (tmp_path / "gap.html").as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert picture.exists(), done.stderr
        assert "CONSOLE" not in done.stderr
        pictures[scheme] = picture.read_bytes()
    assert len(pictures["light"]) > 20_000
    assert pictures["light"] != pictures["dark"]


def test_a_whisker_ends_where_the_figures_of_its_row_begin() -> None:
    """A wide interval, as of a few steps that took seconds, would strike them out."""
    rows = (("backward", Estimate(43e6, -11e6, 16e9)),)
    drawn = charts.draw(Waterfall(("base", 31e6), rows, ("target", 74e6)))
    (ends,) = re.findall(r'class="whisker" x1="([\d.]+)%"[^>]* x2="([\d.]+)%"', drawn)
    assert 0 <= float(ends[0]) < float(ends[1]) <= 100


def test_a_phase_has_the_same_colour_in_each_run_and_in_the_terminal() -> None:
    for names in (("data", "forward", "optimizer"), ("forward", "allreduce", "optimizer")):
        drawn = charts.draw(Shares(tuple((name, 1 / 3) for name in names)))
        for name in names:
            assert f'<rect class="{name}"' in drawn, name
    for phase in (*PHASES, "unknown"):
        for palette, place in (("light", 0), ("dark", 1)):
            colour = PALETTES[palette].style(phase).color
            assert colour is not None
            assert f"--{phase}: {colour.name};" in STYLE
            assert PHASE_COLOURS[phase][place] == colour.name


def test_the_parts_of_a_step_follow_one_another() -> None:
    parts = (("data", 0.25), ("forward", 0.5), ("unknown", -0.1), ("optimizer", 0.25))
    drawn = charts.draw(Shares(parts)).partition('class="rows"')[2]
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)%"[^>]* width="([\d.]+)%"', drawn)
    assert bars == [
        ("data", "0.00", "25.00"),
        ("forward", "25.00", "50.00"),
        ("optimizer", "75.00", "25.00"),
    ]
    assert "-10.0 %" in drawn


def test_some_steps_of_each_rank_are_drawn(runs: dict[str, Path]) -> None:
    found = steady_lanes(Trace.open(runs["late"]))
    assert found is not None
    assert {lane.name for lane in found.lanes} == {"rank 0", "rank 1"}
    assert len(found.steps_ns) == 2
    for lane in found.lanes:
        assert {kind for kind, _, _ in lane.pieces} <= set(PHASES)
        for piece, following in itertools.pairwise(lane.pieces):
            assert found.start_ns <= piece[1] < piece[2] <= following[1] < found.end_ns


def test_a_page_begins_with_the_answer(runs: dict[str, Path], profkit: Call) -> None:
    for arguments, tone in ((("report",), "plain"), (("explain", runs["base"]), "bad")):
        text = profkit(*arguments, runs["late"])[1].split("\n\n")[0]
        page = profkit(*arguments, runs["late"], "--format", "html")[1]
        (answer,) = re.findall(rf'<p class="answer {tone}">([^<]*)</p>', page)
        assert " ".join(text.split()).startswith(answer)
