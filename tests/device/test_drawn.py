"""What a user sees of a job on devices: every figure on the screens and pages is true.

The real interface is driven over the screens of simulated jobs. Each figure in its text is compared
with the scenario's truth, within 2 % of the step, and with `--json`, as it is rounded there.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from profkit.errors import UsageError
from profkit.frame.estimate import Estimate
from profkit.frame.exposed import INPUT_PIECES
from profkit.show.figures import EQUAL_SHARES, interval_range, share_range
from profkit.text import duration, percent, signed, significant
from profkit.tui.headless import twin
from profkit.tui.themes import PHASE_LETTERS
from tests.device.checks import TOLERANCE, Runs
from tests.device.drawn import (
    Drawn,
    Page,
    cells_of,
    cut_figures,
    draw,
    json_of,
    page_of,
    read_ns,
    table,
)
from tests.device.scenarios import BASE, BY_NAME, Scenario
from tests.device.truths import Truth, mean
from tests.tui.figures import figures_of, unknown_figures

WITHOUT_DEVICE_TIMES = ("no_idle_stream", "ranks_without_anchors", "paddle_2.6_two_ranks_tail")
SOME_WITHOUT = "one_rank_without_anchors"
TIMED = (
    *("compute_bound", "launch_bound", "input_bound", "eight_ranks_tail", "late_in_input"),
    *("late_of_eight_in_forward", "graphs", "accumulation", "accumulation_with_no_sync"),
    *("evaluation", "checkpoint", "scaler_skips", "clocks_drift_apart", "copy_overlapped"),
    "input_bound_with_worker",
    *("paddle_compute_bound", "paddle_two_ranks_tail", "paddle_late_in_forward"),
)
NOT_EVERY_STEP = {"evaluation": "other", "checkpoint": "other", "scaler_skips": "optimizer"}
"""What is in some steps only, of which the timeline shows one."""

INSIDE_INPUT = (*INPUT_PIECES, "waiting otherwise")
TRAINS = ("forward", "backward", "optimizer")
HEAD = ("part", "per step")
MOST_BY_MACHINE = 0.04
"""Runs on one device may differ by this share; see `profkit.explain.between`."""
NOTHING = 0.005
"""A loss below this share of a step need not be named."""

EDGES = 2
"""Cells of the timeline at a phase's ends which it shares with its neighbours."""


class Seen(NamedTuple):
    """A scenario with everything that a user sees of its run."""

    scenario: Scenario
    run: Path
    base: Path
    base_truth: Truth
    drawn: Drawn
    report: Mapping[str, Any]
    explained: Mapping[str, Any]
    pages: tuple[Page, Page]

    @property
    def truth(self) -> Truth:
        return mean(self.scenario.truths)

    @property
    def tolerance_ns(self) -> float:
        return TOLERANCE * self.truth.step


@pytest.fixture(scope="module")
def look(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """Return a function that shows a scenario's run, each once."""
    folder = tmp_path_factory.mktemp("pages")

    @functools.cache
    def see(name: str) -> Seen:
        scenario = BY_NAME[name]
        run = runs.of(scenario)
        base, truth = runs.base_of(BY_NAME["input_bound"] if scenario is BASE else scenario)
        if scenario is BASE:
            base, truth = runs.of(BY_NAME["input_bound"]), BY_NAME["input_bound"].truths[0]
        pages = (
            page_of(folder / f"{name}.html", "report", str(run)),
            page_of(folder / f"{name}-explain.html", "explain", str(base), str(run)),
        )
        report = json_of("report", str(run))
        explained = json_of("explain", str(base), str(run))
        return Seen(scenario, run, base, truth, draw(run, base), report, explained, pages)

    return see


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT])
def test_the_parts_of_a_step(look: Callable[[str], Seen], name: str) -> None:
    """The table on the first screen is that of the page, of `--json`, and of the truth."""
    seen = look(name)
    text = seen.drawn.texts["overview"]
    header, *rows = table(text, *HEAD)
    shown = {row[0]: dict(zip(header, row, strict=False)) for row in rows}
    expected = {}
    for phase in seen.report["phases"]:
        part = phase["phase"]
        expected[part] = {
            "part": part,
            "per step": duration(phase["step_ms"]["value"] * 1e6),
            "host": duration(phase["host_ms"] * 1e6),
            "share": percent(phase["share"]["value"]),
            "95 % interval": _interval(phase["share"]),
        }
    parts = {part: shown.get(part) for part in expected}
    assert parts == expected
    on_page = {}
    header, *rows = map(list, seen.pages[0].table("phase", "share"))
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        part = cells.pop("phase")
        on_page[part] = {name: text for name, text in cells.items() if name != "what happens"}
    for cells in expected.values():
        del cells["part"]
    assert on_page == expected
    _compare(seen, {part: read_ns(cells["per step"]) for part, cells in shown.items()})
    speed = seen.scenario.samples * len(seen.scenario.jobs) / seen.truth.step * 1e9
    said = re.search(r"([\d,.]+) samples/s", text)
    assert said, text
    assert said[1] == significant(seen.report["throughput_samples_per_s"]["value"], 4)
    assert float(said[1].replace(",", "")) == pytest.approx(speed, rel=TOLERANCE)
    assert f"step takes {duration(seen.report['step_ms']['value'] * 1e6)}" in text


def _interval(found: Mapping[str, float]) -> str:
    return share_range(Estimate(found["value"], found["low"], found["high"]))


def _compare(seen: Seen, shown: Mapping[str, float]) -> None:
    """Compare the parts on a screen, and those of its exchange, with the truth."""
    expected = dict(seen.truth.parts)
    if "transfer" in shown:
        expected["waiting for a late rank"] = seen.truth.waiting
        expected["transfer"] = seen.truth.allreduce - seen.truth.waiting
    pieces_ns = 0.0
    for part, ns in shown.items():
        if part in INSIDE_INPUT:
            pieces_ns += ns
        elif not part.startswith("hidden: "):
            assert ns == pytest.approx(expected.pop(part), abs=seen.tolerance_ns), part
    if pieces_ns:
        assert pieces_ns == pytest.approx(seen.truth.data, abs=seen.tolerance_ns)
    missing = {part: ns for part, ns in expected.items() if ns > seen.tolerance_ns}
    assert not missing


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT])
def test_every_loss_is_named_with_its_cost(look: Callable[[str], Seen], name: str) -> None:
    seen = look(name)
    named = {}
    for kind, cost, share in re.findall(
        r"^ ?\d (\S+): (.+?) per step, ([\d.]+) %", seen.drawn.texts["overview"], re.MULTILINE
    ):
        named[kind] = read_ns(cost)
        assert float(share) / 100 == pytest.approx(named[kind] / seen.truth.step, abs=TOLERANCE)
    for part, ns in seen.truth.parts.items():
        if part not in TRAINS and ns > (NOTHING + TOLERANCE) * seen.truth.step:
            assert named.pop(part) == pytest.approx(ns, abs=seen.tolerance_ns)
    assert all(ns <= (NOTHING + TOLERANCE) * seen.truth.step for ns in named.values())


@pytest.mark.parametrize("name", ["compute_bound", "launch_bound", "eight_ranks_tail"])
def test_a_host_that_is_not_ahead_leaves_it_open_what_limits_the_step(
    look: Callable[[str], Seen], name: str
) -> None:
    """A device's time of a phase does not say if the device worked all the time."""
    text = " ".join(look(name).drawn.texts["overview"].split())
    said = "the host is in phases for 99 % of a step" in text
    assert said == (name == "launch_bound")


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT])
def test_the_ranks_and_who_waits(look: Callable[[str], Seen], name: str) -> None:
    seen = look(name)
    text = seen.drawn.texts["ranks"]
    header, *rows = table(text, "rank", "step")
    found = twin(seen.run, "ranks")
    assert len(rows) == len(seen.scenario.jobs)
    for row, rank, truth in zip(rows, found["ranks"], seen.scenario.truths, strict=True):
        cells = dict(zip(header, row, strict=True))
        assert cells.pop("rank") == str(rank["rank"])
        assert cells.pop("step") == duration(rank["wall_ns"])
        for phase, cell in cells.items():
            ns = rank["phase_ns"].get(phase)
            assert cell == ("-" if ns is None else duration(ns))
            if ns is not None:
                assert read_ns(cell) == pytest.approx(truth.parts[phase], abs=seen.tolerance_ns)
    if len(rows) > 1:
        _compare_waits(seen, text)


def _compare_waits(seen: Seen, text: str) -> None:
    """Compare who waits for whom, and the sentence about it."""
    if seen.scenario.says_missing:
        assert "inconclusive: some ranks have no device times" in text
        assert "no rank waits" not in text
        return
    waited: dict[int, float] = {}
    _, *rows = table(text, "rank", "waits for") or [[]]
    for row in rows:
        if row[0].isdecimal():
            waited[int(row[0])] = waited.get(int(row[0]), 0.0) + read_ns(row[3])
    for rank, truth in enumerate(seen.scenario.truths):
        assert waited.get(rank, 0.0) == pytest.approx(truth.waiting, abs=seen.tolerance_ns)
    late = re.search(
        r"rank (\d+) is late: the others wait ([\d.]+ \S+) per step.*?; its (\w+)", text
    )
    longest = max(truth.waiting for truth in seen.scenario.truths)
    assert bool(late) == (longest > NOTHING * seen.truth.step)
    if late:
        cause = next(each for each in seen.scenario.causes if each.kind == "late_rank")
        assert int(late[1]) == len(seen.scenario.jobs) - 1
        assert read_ns(late[2]) == pytest.approx(longest, abs=seen.tolerance_ns)
        assert late[3] == cause.phase


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT])
def test_a_step_on_the_timeline(look: Callable[[str], Seen], name: str) -> None:
    """The cells of each phase are as long as the phase."""
    drawn, seen = look(name).drawn, look(name)
    varies = NOT_EVERY_STEP.get(name, "")
    for rank, truth in enumerate(seen.scenario.truths):
        if drawn.labels[rank] == "launches":
            assert (name, rank) == (SOME_WITHOUT, 1)
            continue
        times = 1 if name != "accumulation" else 4
        times = 3 if name == "accumulation_with_no_sync" else times
        for part, ns in truth.parts.items():
            letter = PHASE_LETTERS[part]
            if part not in {varies, "unknown"}:
                off = seen.tolerance_ns + EDGES * times * drawn.cell_ns
                assert drawn.covered_ns(rank, letter) == pytest.approx(ns, abs=off), part


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT, *WITHOUT_DEVICE_TIMES])
def test_nothing_is_said_of_kernels_that_were_not_captured(
    look: Callable[[str], Seen], name: str
) -> None:
    text = look(name).drawn.texts["kernels"]
    assert "no kernels were captured" in text
    below_the_status = "\n".join(text.splitlines()[2:-1])
    assert figures_of(below_the_status) == {"20", "23"}


@pytest.mark.parametrize(
    ("name", "wait", "step"),
    [("input_bound", "40.0 ms", "106 ms"), ("input_bound_with_worker", "34.0 ms", "100 ms")],
)
def test_the_loader_takes_what_the_loop_waits(
    look: Callable[[str], Seen], name: str, wait: str, step: str
) -> None:
    text = look(name).drawn.texts["loader"]
    assert f"a step of {step} waits {wait} for data" in text
    assert f"the loop makes a step's batches every {wait}" in text


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT])
def test_the_ledger_and_its_causes(look: Callable[[str], Seen], name: str) -> None:
    seen = look(name)
    text, found = seen.drawn.texts["explain"], seen.explained
    factor = found["samples_per_step_and_gpu"]
    per_base = factor / seen.scenario.samples
    header, *rows = table(text, "where the time goes", "base")
    shown = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    on_page = {row[0].rpartition("› ")[2]: row for row in seen.pages[1].table("", "base")}
    for row in _with_inside(found["rows"]):
        base, target = row["base_ns"]["value"] * factor, row["target_ns"]["value"] * factor
        delta = {end: row["difference_ns"][end] * factor for end in ("value", "low", "high")}
        cells = shown[row["name"]]
        expected = [duration(base), duration(target), signed(delta["value"])]
        assert [cells["base"], cells["target"], cells["difference"]] == expected
        interval = interval_range(Estimate(*delta.values()), signed)
        assert cells["95 % interval"] == interval
        assert list(on_page[row["name"]][1:5]) == [*expected, interval]
        if row["name"] in seen.truth.parts:
            before = seen.base_truth.parts[row["name"]]
            now = seen.truth.parts[row["name"]] * per_base
            off = TOLERANCE * max(seen.base_truth.step, seen.truth.step * per_base)
            assert read_ns(cells["base"]) == pytest.approx(before, abs=off)
            assert read_ns(cells["target"]) == pytest.approx(now, abs=off)
            assert read_ns(cells["difference"]) == pytest.approx(now - before, abs=off)
    change = seen.truth.step * per_base / seen.base_truth.step - 1
    verdict = "neutral"
    if abs(change) > TOLERANCE / 2:
        verdict = "regression" if change > 0 else "improvement"
    if abs(change) < MOST_BY_MACHINE and verdict != "neutral":
        doubted = found["between_runs"]["doubt"]
        assert doubted or found["between_runs"]["carried_by"]  # by what no machine makes
        verdict = "inconclusive" if doubted else verdict
    assert re.search(rf"^ {verdict}: ", text, re.MULTILINE)
    for share in (text, seen.pages[1].text):
        assert f"takes {percent(abs(found['change_share']['value']))} " in share
    _compare_causes(seen, text)


def _with_inside(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        yield row
        yield from row.get("rows", ())


def _compare_causes(seen: Seen, text: str) -> None:
    """Each cause is named with its cost, and nothing else that costs as much."""
    named = {}
    pattern = (
        r"^ ?\d [^(\n]+\((\w+)(?:,\s+improvement)?\):\s+(?:([\d.,]+ \S+) per step|costs nothing)"
    )
    for kind, cost in re.findall(pattern, text, re.MULTILINE):
        named[kind] = read_ns(cost) if cost else 0.0
    expected = {cause.kind: cause.cost for cause in seen.scenario.causes}
    if seen.scenario is BASE:
        expected = {"input_bound": seen.base_truth.data}
    for kind in {*named, *expected}:
        cost = expected.get(kind, 0.0)
        assert named.get(kind, 0.0) == pytest.approx(cost, abs=seen.tolerance_ns), kind


@pytest.mark.parametrize("name", WITHOUT_DEVICE_TIMES)
def test_without_device_times_nothing_is_claimed(look: Callable[[str], Seen], name: str) -> None:
    seen = look(name)
    overview, ranks = seen.drawn.texts["overview"], seen.drawn.texts["ranks"]
    for text in (overview, seen.pages[0].text):
        assert "on the host's clock" in " ".join(text.split())
    assert "not known: without device times" in overview
    assert "none found" not in overview
    assert not re.search(r"^ ?\d \w+: .+ per step", overview, re.MULTILINE)
    assert " is late" not in ranks
    if len(seen.scenario.jobs) > 1:
        assert "who waits is inconclusive" in ranks
    assert set(seen.drawn.labels.values()) == {"launches"}
    explained = seen.drawn.texts["explain"]
    rows = [row[0] for row in table(explained, "where the time goes", "base")[1:]]
    assert not {*TRAINS, "allreduce", "h2d"} & set(rows)
    step = seen.scenario.truths[0].step
    assert f"step takes {duration(step, 3)[:2]}" in overview


@pytest.mark.parametrize("name", [*TIMED, SOME_WITHOUT, *WITHOUT_DEVICE_TIMES])
def test_no_figure_is_cut_and_each_is_in_json(look: Callable[[str], Seen], name: str) -> None:
    seen = look(name)
    for screen, text in seen.drawn.texts.items():
        assert not cut_figures(text), screen
        assert "cannot be shown" not in text
    known = [twin(seen.run, "overview"), seen.report, seen.run.name]
    with contextlib.suppress(UsageError):  # nothing can be said of a change
        known.append(twin(seen.run, "whatif"))
    for text in (seen.drawn.texts["overview"], seen.pages[0].text):
        shown = _without_strip(text).replace(EQUAL_SHARES, "")
        assert not unknown_figures(shown, known)


def _without_strip(text: str) -> str:
    """Return the text without the scale of its chart, the tabs and the keys."""
    scale_or_frame = r"up to|Overview|Enter|made by profkit"
    kept = [line for line in text.splitlines() if not re.search(scale_or_frame, line)]
    return "\n".join(kept).replace("95 % interval", "")


def test_a_table_is_read_as_it_is_drawn() -> None:
    """The helper finds cells at any width, and no bar is taken for one."""
    row = "   allreduce               21.5 ms  5.00 us   23.9 %  23.9 to 23.9 %   ███▉"
    assert cells_of(row) == ["allreduce", "21.5 ms", "5.00 us", "23.9 %", "23.9 to 23.9 %"]
    assert cut_figures(" forward   20.0 m…\n h2d   1.0…\n inpu…") == [" h2d   1.0…"]
    assert read_ns("1,641 ns") == 1641.0
