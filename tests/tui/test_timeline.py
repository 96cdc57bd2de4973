"""The timeline's keys: the words, letters and figures that each of them shows."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from textual import events

from profkit.analysis.timeline.lane_store import LaneStore
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.timeline import Timeline
from profkit.analysis.timeline.view import CounterRow, Label, StepMark
from profkit.analysis.timeline.window import Window
from profkit.cli import main
from profkit.clock import Anchor
from profkit.errors import UnreadableError, UsageError
from profkit.show import json as show_json
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, Trace
from profkit.trace.files import RankFiles
from profkit.tui.app import ProfkitApp
from profkit.tui.screens.base import Place
from profkit.tui.screens.timeline import TimelineScreen
from profkit.tui.themes import PALETTES
from profkit.tui.timeline.canvas import Canvas
from profkit.tui.timeline.painted import Look, letters_for
from profkit.tui.timeline.row_paint import counter_words, label_text, short_name
from profkit.tui.timeline.rulers import step_ruler, time_ruler
from profkit.tui.timeline.words import parse_step, parse_time
from profkit.tui.widgets.ask import Facts, Prompt
from profkit.vocab import PHASES
from tests.tui.driving import Driver, drive, shown

KERNELS_A_STEP = 20
STEPS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks; rank 2 waits for data longer than the others."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return synthetic_trace(
        folder,
        ranks=4,
        steps=STEPS,
        kernels_per_step=KERNELS_A_STEP,
        device="cuda",
        rank_phase_ns={2: {"data": 9_000_000}},
        jitter=0.0,
    )


def _screen(driver: Driver) -> TimelineScreen:
    screen = driver.app.screen
    assert isinstance(screen, TimelineScreen)
    return screen


async def _answer(driver: Driver, key: str, text: str) -> None:
    """Press a key that asks for something, and answer it."""
    await driver.press(key)
    await driver.pilot.press(*text)
    await driver.press("enter")


def test_the_keys_lead_through_the_run(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        shown = screen.seen.window
        steps = screen.seen.timeline.steps(0)
        assert (shown.start_ns, shown.end_ns) in {
            (start, end) for start, end in zip(steps.start_ns, steps.end_ns[2:], strict=False)
        }
        await driver.press("0")
        whole = screen.seen.window
        await driver.press("plus", "plus")
        assert screen.seen.window.length_ns == whole.length_ns // 4
        before = screen.seen.window.start_ns
        await driver.press("right", "l", "d")
        assert screen.seen.window.start_ns - before == 3 * (screen.seen.window.length_ns // 8)
        await driver.press("left", "h", "a")
        assert screen.seen.window.start_ns == before
        await driver.press("minus", "s", "0")
        assert screen.seen.window == whole
        await _answer(driver, "g", "7")
        first, last = screen.seen.timeline.step_bounds(7) or (0, 0)
        assert screen.seen.at_ns == first
        assert screen.seen.window.start_ns <= first < last <= screen.seen.window.end_ns
        assert "step 7" in driver.text
        await _answer(driver, "g", "300ms")
        assert screen.seen.at_ns == 300_000_000
        await driver.press("home")
        assert "step 0" in driver.text
        await _answer(driver, "g", "99")
        assert f"no step 99: there are 0 to {STEPS - 1}" in driver.text
        await _answer(driver, "g", "soon")
        assert "'soon' is not a time" in driver.text

    drive(run, steps, screen="timeline")


def test_gaps_and_late_ranks_are_found(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        await _answer(driver, "g", "5")
        await driver.press("L")
        assert "rank 2 was last in step 5" in driver.text
        assert screen.seen.expanded == 2
        late = screen.seen.timeline.late(screen.seen.at_ns - 1, 0)
        assert late is not None
        assert (late.time_ns, late.rank) == (screen.seen.at_ns, 2)
        await driver.press("L", "H")
        assert screen.seen.at_ns == late.time_ns
        await driver.press("down", "down", "greater_than_sign")
        gap_at = screen.seen.at_ns
        assert "nothing for" in driver.text
        await driver.press("greater_than_sign")
        assert screen.seen.at_ns > gap_at
        await driver.press("less_than_sign")
        assert screen.seen.at_ns == gap_at
        await driver.press("end", "plus", "0", "greater_than_sign")
        assert "no gap of more than" in driver.text or "nothing for" in driver.text

    drive(run, steps, screen="timeline")


def test_events_are_walked_found_and_opened(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        await driver.press("home", "down", "down", "full_stop")
        first = screen.seen.at_ns
        await driver.press("full_stop")
        second = screen.seen.at_ns
        await driver.press("comma")
        assert (first, first < second) == (screen.seen.at_ns, True)
        await driver.press("z")
        lane = screen.seen.timeline.lanes(
            0, screen.seen.here.group if screen.seen.here else screen.seen.group
        )[0]
        row = screen.seen.piece
        assert row is not None
        event = screen.seen.timeline.event(*row)
        assert event is not None
        assert event.label == lane.label
        await driver.press("enter")
        assert isinstance(driver.app.screen, Facts)
        for text in (event.name, "duration", "stream", "launch", "grid"):
            assert text in driver.text
        await driver.press("escape")
        await _answer(driver, "slash", "sgemm")
        assert "ampere_sgemm" in driver.text
        at = screen.seen.at_ns
        await driver.press("n", "N")
        assert screen.seen.at_ns == at
        await _answer(driver, "m", "1s")
        assert all(
            not row.covered_ns.any() for row in (screen.seen.view.rows if screen.seen.view else ())
        )

    drive(run, steps, screen="timeline")


@pytest.mark.parametrize("key", ["slash", "g", "m"])
def test_a_slash_belongs_to_the_text_in_the_prompt(key: str, run: Path) -> None:
    async def steps(driver: Driver) -> None:
        await driver.press(key)
        await driver.pilot.press("a", "slash", "b")
        asked = driver.app.screen.query_one(Prompt)
        assert (asked.display, asked.value) == (True, "a/b")

    drive(run, steps, screen="timeline")


def test_ranks_open_and_close_and_rows_change(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        assert "r0 phases" in driver.text
        assert "cuda:0 stream 7" in driver.text
        await driver.press("right_square_bracket")
        assert "cuda:1 stream 7" in driver.text
        assert "cuda:0 stream 7" not in driver.text
        await driver.press("left_square_bracket", "left_square_bracket")
        assert "cuda:3 stream 7" in driver.text
        await driver.press("x")
        assert "stream 7" not in driver.text
        await driver.press("v")
        assert "r3 cuda:3" in driver.text
        await driver.press("v")
        assert "r3 default_pg" in driver.text
        await driver.press("e", "j")
        assert show_json.dumps(screen.content())

    drive(run, steps, screen="timeline")


def test_the_mouse_points_zooms_and_pans(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        canvas = screen.canvas
        await driver.pilot.click(Canvas, offset=(canvas.label_width + 30, 2))
        await driver.pilot.pause()
        assert (screen.seen.column, screen.seen.row) == (30, 0)
        whole = screen.seen.window
        canvas.post_message(
            events.MouseScrollUp(
                canvas, canvas.label_width + 30, 4, 0, -1, 0, shift=False, meta=False, ctrl=False
            )
        )
        await driver.pilot.pause()
        assert screen.seen.window.length_ns < whole.length_ns
        closer = screen.seen.window
        canvas.post_message(
            events.MouseScrollDown(
                canvas, canvas.label_width + 30, 4, 0, 1, 0, shift=True, meta=False, ctrl=False
            )
        )
        await driver.pilot.pause()
        assert screen.seen.window.length_ns == closer.length_ns
        assert screen.seen.window.start_ns > closer.start_ns

    drive(run, steps, screen="timeline")


def test_other_screens_lead_to_a_kernel(run: Path) -> None:
    rows = Trace.open(run).ranks[1].table("kernels").to_pylist()
    place = next(
        at for at, row in enumerate(rows) if row["name"].startswith("Memcpy") and row["step"] == 6
    )

    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        screen.look_at(Place(rank=1, row=place))
        await driver.pilot.pause()
        selected = screen.seen.piece
        assert selected is not None
        event = screen.seen.timeline.event(*selected)
        assert event is not None
        assert (event.rank, event.fields["correlation"], event.label) == (
            1,
            rows[place]["correlation"],
            "cuda:1 stream 13",
        )
        screen.look_at(Place(rank=2, step=3, kernel="ampere_sgemm_128x64_nn"))
        await driver.pilot.pause()
        selected = screen.seen.piece
        found = screen.seen.timeline.event(*selected) if selected else None
        assert found is not None
        assert (found.rank, found.name, found.fields["step"]) == (2, "ampere_sgemm_128x64_nn", 3)
        screen.look_at(Place(rank=2, kernel="no such kernel"))
        await driver.pilot.pause()
        assert "not on this rank" in driver.text

    drive(run, steps, screen="timeline")


def test_every_figure_is_in_the_twin(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(run), "--screen", "timeline", "--json"]) == 0
    twin = json.loads(capsys.readouterr().out)

    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        content = screen.content()
        assert (twin["run_start_ns"], twin["run_end_ns"]) == (
            content["run_start_ns"],
            content["run_end_ns"],
        )
        for row, shown_row in zip(twin["rows"], content["rows"], strict=True):
            assert (row["rank"], row["group"], row["label"]) == (
                shown_row["rank"],
                shown_row["group"],
                shown_row["label"],
            )
            assert sum(row["covered_ns"]) == sum(shown_row["covered_ns"])
            assert sum(row["events_begun_count"]) == sum(shown_row["events_begun_count"])
        here = screen.seen.here
        assert here is not None
        assert (
            f"{100 * here.dominant_ns[screen.seen.column] / screen.seen.window.cell_ns:.0f} %"
            in driver.text
        )

    drive(run, steps, screen="timeline")


def test_keys_pressed_while_it_is_read_do_nothing(run: Path) -> None:
    async def steps() -> None:
        app = ProfkitApp(run, screen="timeline")
        async with app.run_test() as pilot:
            screen = app.screen
            assert isinstance(screen, TimelineScreen)
            sight, screen.sight = screen.sight, None
            for key in (
                "plus",
                "left",
                "down",
                "0",
                "g",
                "L",
                "greater_than_sign",
                "enter",
                "right_square_bracket",
                "slash",
                "n",
                "v",
                "x",
                "z",
                "end",
            ):
                await pilot.press(key)
            screen.sight = sight
            await pilot.press("plus")
        assert app.return_code in {0, None}

    asyncio.run(steps())


def test_a_run_without_ranks_or_with_odd_times_is_shown(tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=3)
    for file in (run / "r00000").iterdir():
        file.unlink()
    files = RankFiles(tmp_path / "rank", 0)
    spans: dict[str, list[Any]] = {
        "phase": ["forward"] * 2,
        "name": ["forward"] * 2,
        "depth": [0, 0],
        "thread": ["Main"] * 2,
        "start_ns": [-(2**62), 5],
        "end_ns": [2**62, 1],
    }
    files.write("spans", spans)
    files.close()
    for file in (tmp_path / "rank").iterdir():
        file.rename(run / "r00000" / file.name)
    RankManifest(0, "here", 1, "cpu", Anchor(0, 0, 0)).write(run / "r00000")

    async def steps(driver: Driver) -> None:
        assert "r0 phases" in driver.text
        await driver.press(
            "plus", "right", "greater_than_sign", "full_stop", "L", "enter", "escape", "end", "0"
        )

    drive(run, steps, screen="timeline")


def test_unreadable_lanes_are_reported_and_the_others_shown(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        monkeypatch.setattr(LaneStore, "_whole", _refuse)
        await driver.press("right_square_bracket")
        assert "the disk is gone" in driver.text
        await driver.press("plus")
        assert "r0 phases" in driver.text
        assert screen.seen.view is not None

    drive(run, steps, screen="timeline")


def _refuse(timeline: Timeline, rank: int, group: Group) -> tuple[Lane, ...]:
    raise UnreadableError("the disk is gone")


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (250, 60)])
def test_it_fits_terminals_of_all_sizes(run: Path, size: tuple[int, int]) -> None:
    text = shown(run, size=size, screen="timeline")
    assert max(cell_len(line) for line in text.splitlines()) <= size[0]
    assert "r0 phases" in text


def test_ascii_mode_draws_ascii_and_marks_phases_by_letters(run: Path) -> None:
    async def steps(driver: Driver) -> None:
        await _answer(driver, "g", "6")
        lines = driver.text.splitlines()
        assert all(line.isascii() for line in lines[1:-1])
        row = next(line for line in lines if "r1 phases" in line)
        assert "FFFF" in row
        assert "BBBB" in row
        assert "DD" in row

    drive(run, steps, screen="timeline", plain=True)


def test_without_colours_phases_are_marked_by_letters(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    row = next(line for line in shown(run, screen="timeline").splitlines() if "r1 phases" in line)
    assert "BBB" in row


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Path]:
    """A run in which the kernels' names try to steer the terminal."""
    from profkit.testing import synthetic_kernels

    names = synthetic_kernels.KERNEL_KINDS["name"]
    steering = "\x1b]0;title\x07[/b]\u202e\N{PILE OF POO}" + "x" * 4_000
    kinds = {**synthetic_kernels.KERNEL_KINDS, "name": (steering, *names[1:])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_kernels, "KERNEL_KINDS", kinds)
        yield synthetic_trace(tmp_path / "run", steps=4, kernels_per_step=6, device="cuda")


def test_names_from_strangers_cannot_steer_the_screen(hostile: Path) -> None:
    async def steps(driver: Driver) -> None:
        screen = _screen(driver)
        for _ in range(3):
            await driver.press("down", "plus", "plus")
            for line in screen.canvas._lines:
                text = line.text
                assert line.cell_length == screen.canvas.size.width
                assert not any(char in text for char in "\x1b\x07\u202e")
        screen.look_at(Place(rank=0, step=2))
        await _answer(driver, "slash", "title")
        await driver.press("z", "enter")
        assert isinstance(driver.app.screen, Facts)

    drive(hostile, steps, screen="timeline")


def _look(*, letters: bool = False) -> Look:
    return Look(PALETTES["dark"], plain=letters, letters=letters)


def _text(cells: list[Any]) -> str:
    return "".join(char for char, _ in cells)


def test_rulers_show_round_times_that_do_not_touch() -> None:
    assert "+1.00 s" in _text(
        time_ruler(Window(980_000_000, 1_100_000_000, 60), _look(letters=True))
    )
    for length in (100, 12_345, 10**7, 10**10, 10**14):
        text = _text(time_ruler(Window(10**9, 10**9 + length, 100), _look(letters=True)))
        assert len(text) == 100
        assert text.count("+") >= 2
        assert all(part.rstrip("-").endswith("s") for part in text.split("+")[1:])


def test_step_numbers_are_round_where_they_crowd() -> None:
    marks = [StepMark(column, 300 + column) for column in range(100)]
    numbers = [
        int(word)
        for word in _text(step_ruler(marks, 100, _look(letters=True))).replace("|", " ").split()
    ]
    assert numbers == list(range(300, 400, 10))


def test_kinds_have_letters_of_their_own() -> None:
    kinds = (*PHASES, "gemm", "convolution", "something", "someone", "sort or scan")
    letters = letters_for(kinds)
    assert len(set(letters.values())) == len(kinds)
    assert letters["forward"] == "f"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::relu>(int, float*)",
            "vectorized_elementwise_kernel",
        ),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD"),
        ("aten::add_", "add_"),
        ("<<< >>>", "<<< >>>"),
    ],
)
def test_long_names_are_shortened_to_their_distinct_part(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_kind_without_room_has_its_letter() -> None:
    letters = {"backward": "b"}
    assert label_text(Label(0, 8, "backward"), letters, _look()) == "backward"
    assert label_text(Label(0, 7, "backward"), letters, _look()) == "B"
    assert label_text(Label(0, 7, "some_kernel"), letters, _look()) == "some_k…"
    assert label_text(Label(0, 4, "some_kernel"), letters, _look()) == ""


@pytest.mark.parametrize(
    ("metric", "value", "name", "text"),
    [
        ("busy_percent", 97.0, "busy", "97.0 %"),
        ("memory_used_bytes", 2e9, "memory used", "2.00 GB"),
        ("disk_read_bytes_per_s", 5e6, "disk read", "5.00 MB/s"),
        ("cpu_cores", 1.5, "cpu", "1.50 cores"),
        ("odd", 3.0, "odd", "3.00"),
        ("busy_percent", float("nan"), "busy", "-"),
    ],
)
def test_readings_have_their_unit(metric: str, value: float, name: str, text: str) -> None:
    reading = np.array([value])
    assert counter_words(CounterRow(0, "", metric, reading, reading, reading, math.nan), 0) == (
        name,
        text,
    )


def test_times_and_steps_are_read_as_people_write_them() -> None:
    assert [parse_time(text) for text in ("12.5s", " 300 ms", "20us", "7ns", "2m", "1h")] == [
        12_500_000_000,
        300_000_000,
        20_000,
        7,
        120 * 10**9,
        3600 * 10**9,
    ]
    assert [parse_step(text) for text in ("12", "step 12", "12s", "")] == [12, 12, None, None]
    with pytest.raises(UsageError, match=r"'1 fortnight' is not a time; write 12\.5s"):
        parse_time("1 fortnight")
