"""Kernels, ranks, loader and devices: their figures are in the JSON, and keys lead on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.kernels.view import kernels_of
from profkit.analysis.overview import build_overview
from profkit.report.device_sections import device_shares
from profkit.show import json as show_json
from profkit.testing.synthetic import synthetic_trace
from profkit.text import byte_size, duration, percent, significant
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RunManifest
from profkit.tui import headless
from profkit.tui.app import load_screens
from tests.tui.driving import Driver, drive

SCREENS = ("kernels", "ranks", "loader", "devices")
RECORDED = sorted(
    path.parent for path in (Path(__file__).parents[2] / "traces").glob("recorded-*/run.json")
)
FIGURE = re.compile(
    r"(?<![\w.:/#-])[+-]?\d[\d,]*(?:\.\d+)?"
    r"(?: (?:s|ms|us|ns|%|x|/s|cores|W|MHz|°C|[KMGT]?B(?:/s)?)(?![\w]))?(?![\w.])"
)
"""A number on a screen with its unit; digits inside a name do not match."""

SHORT = 3
"""A name with at most this many characters may be part of a figure."""

OTHER_FIGURES = {"0", "0 cores", "0 /s", "0 B", "0 B/s", "0 s", "0.0 %"}
"""The scale of a chart begins at zero."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with kernels on GPUs; rank 1 is late with its data."""
    folder = tmp_path_factory.mktemp("runs") / "late"
    return synthetic_trace(
        folder,
        ranks=2,
        steps=40,
        kernels_per_step=30,
        device="cuda",
        rank_phase_ns={1: {"data": 9_000_000}},
    )


def _numbers(content: Any) -> Iterator[float]:
    """Yield every number of a JSON value, and the lengths of its lists."""
    if isinstance(content, dict):
        yield len(content)
        for value in content.values():
            yield from _numbers(value)
    elif isinstance(content, list):
        yield len(content)
        for value in content:
            yield from _numbers(value)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield content


def _forms(value: float) -> Iterator[str]:
    """Yield all forms in which a screen may show a number."""
    yield from (
        duration(value),
        duration(value * 1e9),
        percent(value),
        percent(value, 0),
        byte_size(value),
        f"{byte_size(value)}/s",
        significant(value),
    )
    yield from (f"{significant(value)} {unit}" for unit in ("x", "/s", "cores", "W", "MHz", "%"))
    if value == int(value):
        yield from (f"{int(value):,}", f"{int(value):,} cores")


def _known_forms(content: Any) -> set[str]:
    forms = {form for value in set(_numbers(content)) for form in _forms(value)}
    return forms | {f"+{form}" for form in forms} | OTHER_FIGURES


def _not_in_json(screen: str, content: Any) -> list[str]:
    """Return the figures of a screen, without tabs and keys, that are not in its JSON."""
    known = _known_forms(content)
    names = sorted(
        {
            text
            for text in _texts(content)
            if len(text) > SHORT and any(char.isdigit() for char in text)
        },
        key=len,
        reverse=True,
    )
    return [
        figure
        for line in screen.splitlines()[1:-1]
        for figure in FIGURE.findall(_without(line, names))
        if figure not in known
    ]


def _without(line: str, names: list[str]) -> str:
    """Return a line without names that contain digits, and without names that are cut off.

    The steps of an option that the line advises are no figure either.
    """
    line = line.replace("--kernels 20:23", " ")
    for name in names:
        line = line.replace(name, " ")
        cut = next((end for end in range(len(name), 3, -1) if name[:end] + "…" in line), 0)
        line = line.replace(name[:cut] + "…", " ") if cut else line
    return line


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, str):
        yield content


def _walk(path: Path, look: Callable[[str, str], None], **options: Any) -> None:
    """Open each screen in turn, and pass its name and its text on."""

    async def steps(driver: Driver) -> None:
        for screen, kind in load_screens().items():
            if screen in SCREENS:
                await driver.press(kind.KEY)
                assert driver.screen == kind.__name__
                look(screen, driver.text)

    drive(path, steps, **options)


@pytest.mark.parametrize(
    "path",
    [
        None,
        *RECORDED[:2],
        *(pytest.param(path, marks=pytest.mark.nightly) for path in RECORDED[2:]),
    ],
    ids=lambda path: path.name if path else "synthetic",
)
def test_every_figure_of_a_screen_is_in_its_json(run: Path, path: Path | None) -> None:
    def look(screen: str, text: str) -> None:
        content = headless.twin(path or run, screen)
        answer = headless.twin(path or run, "overview")  # which the status line repeats
        assert _not_in_json(text, [content, answer]) == [], screen
        show_json.dumps(content)

    _walk(path or run, look, size=(200, 50))


@pytest.mark.parametrize("size", [(20, 6), (80, 24)])
def test_each_fits_any_terminal_and_plain_ascii(run: Path, size: tuple[int, int]) -> None:
    def look(screen: str, text: str) -> None:
        lines = text.splitlines()
        assert all(len(line) <= size[0] for line in lines), screen
        assert all(line.isascii() for line in lines[:-1]), screen

    _walk(run, look, size=size, plain=True)


def test_a_run_without_anything_to_show_says_so(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "bare", steps=1)
    (run / "r00000" / "samples.arrows").unlink()
    words = {
        "kernels": "no kernels were captured",
        "ranks": "one rank: no other rank to wait for",
        "loader": "the loader's internals were not recorded",
        "devices": "no collector has recorded anything",
    }

    def look(screen: str, text: str) -> None:
        assert words[screen] in text

    _walk(run, look)


def test_a_run_of_which_no_rank_has_written_anything_is_shown(tmp_path: Path) -> None:
    RunManifest("w").write(tmp_path)

    def look(screen: str, text: str) -> None:
        assert "cannot be shown" not in text
        show_json.dumps(headless.twin(tmp_path, screen))

    _walk(tmp_path, look)


def test_a_kernel_opens_on_the_timeline_and_its_calls_do_too(run: Path) -> None:
    longest = kernels_of(Trace.open(run)).groups[0]

    async def steps(driver: Driver) -> None:
        assert driver.screen == "KernelsScreen"
        assert longest.name in driver.text
        await driver.press("c")
        assert driver.screen == "CallsScreen"
        assert duration(longest.longest.duration_ns) in driver.text.splitlines()[3]
        await driver.press("enter")
        assert driver.screen == "TimelineScreen"
        await driver.press("escape", "escape")
        assert driver.screen == "KernelsScreen"
        await driver.press("enter")
        assert driver.screen == "TimelineScreen"
        assert longest.name[:40] in driver.text

    drive(run, steps, screen="kernels")


def test_kernels_are_filtered_sorted_and_shown_by_rank(run: Path) -> None:
    one = kernels_of(Trace.open(run), rank=0)

    async def steps(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("gemm")
        await driver.press("enter")
        assert "filter 'gemm': 2 of 6" in driver.text
        assert "relu" not in driver.text
        await driver.press("escape", "right_square_bracket")
        assert "rank 0 of 2" in driver.text
        assert f"{one.calls:,} calls on cuda:0 " in driver.text

    drive(run, steps, screen="kernels")


def test_the_kernels_of_a_run_say_how_busy_its_device_is(run: Path) -> None:
    shares = build_device_shares(run)

    async def steps(driver: Driver) -> None:
        busy, idle = percent(shares["busy_ns"]), percent(shares["idle_ns"])
        assert f"device busy {busy}, idle {idle} (" in driver.text

    drive(run, steps, screen="kernels")


def build_device_shares(run: Path) -> dict[str, float]:
    devices = build_overview(Trace.open(run)).devices
    assert devices is not None
    return device_shares(devices)


def test_a_late_rank_is_marked_by_a_sign_and_a_colour(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        assert "rank 1 is late" in driver.text
        assert "9.1" in driver.text or "9.0" in driver.text
        assert driver.text.count("▲") >= 1
        await driver.press("v")
        assert "+3." in driver.text
        await driver.press("down", "enter")
        assert driver.screen == "TimelineScreen"

    drive(run, steps, screen="ranks")


def test_the_chart_below_the_devices_is_of_the_reading_under_the_cursor(tmp_path: Path) -> None:
    RunManifest("w").write(tmp_path)
    files = RankFiles(tmp_path / "r00000", 0)
    files.write(
        "steps",
        {"step": [0], "start_ns": [0], "end_ns": [8], "sample_count": [1], "instrumented": [True]},
    )
    columns = {
        "source": ["nvml"] * 8,
        "device": ["cuda:0"] * 8,
        "metric": ["power_watts", "sm_clock_mhz"] * 4,
    }
    files.write(
        "samples",
        {**columns, "time_ns": list(range(8)), "value": [300.0, 1200.0, 350.0, 1300.0] * 2},
    )
    files.close()

    async def steps(driver: Driver) -> None:
        assert "350 W" in driver.text
        before = driver.text
        await driver.press("down")
        assert driver.text != before
        assert "1,300 MHz" in driver.text

    drive(tmp_path, steps, screen="devices")


def test_no_name_in_a_run_can_steer_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07[/b]\u202e" + "x" * 4_000 + "\U0001f600"
    run = synthetic_trace(tmp_path / "run", steps=12)
    files = RankFiles(tmp_path / "more", 1)
    files.write(
        "kernels",
        {
            "device": [hostile],
            "stream": [0],
            "start_ns": [5],
            "end_ns": [9],
            "name": [hostile],
            "category": [hostile],
            "op": [hostile],
        },
    )
    samples = {
        "source": [hostile],
        "device": [hostile],
        "metric": [hostile],
        "time_ns": [Trace.open(run).steps["start_ns"][3].as_py()],
        "value": [1.0],
    }
    files.write("samples", samples)
    files.close()
    (tmp_path / "more").replace(run / "r00001")

    def look(screen: str, text: str) -> None:
        assert not [char for char in text if ord(char) < 32 and char != "\n"], screen
        assert "\u202e" not in text

    _walk(run, look)
