"""Each screen and its JSON show the same values, and no content of a run breaks either."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.ceilings import Ceilings
from profkit.analysis.overview import build_overview
from profkit.cli import main
from profkit.errors import ExitCode
from profkit.frame.estimate import Estimate
from profkit.report import kernel_sections, machine_sections
from profkit.report.overview_document import overview
from profkit.show import json as show_json
from profkit.show import text as show_text
from profkit.show.document import Grid
from profkit.show.figures import share_range
from profkit.testing import synthetic_trace
from profkit.text import duration, percent, safe_text, significant
from profkit.trace import RunManifest, Trace, verify
from profkit.trace.files import RankFiles
from profkit.vocab import RunState, rank_folder
from tests.documents import report_json, report_text

COPIED = ("  trace", "  next")
"""Lines that hold what a reader copies, which is never folded."""

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m resnet\u202e05\u200b\r\n\x00 " + "long name " * 20
MS = 1_000_000

Screen = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def screen(capsys: pytest.CaptureFixture[str]) -> Screen:
    """Calls the command line in this process; gives exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("whole") / "run", ranks=2, steps=80, last_batch_size=9
    )


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy of a whole run of two ranks, to be changed."""
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


def _edit_manifest(run: Path, **changes: Any) -> Path:
    path = run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return run


def _strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _lines(text: str) -> dict[str, str]:
    """The screen's lines by their first word; the first of each."""
    return {line.split()[0]: line for line in reversed(text.splitlines()) if line.strip()}


def test_the_json_twin_tells_what_the_text_tells(run: Path, screen: Screen) -> None:
    code, text, narration = screen("report", run, "--all")
    figures = _strict(screen("report", run, "--json")[1])
    lines = _lines(text)
    assert (code, narration, figures["verdict"]) == (ExitCode.DONE, "", "measured")
    throughput, step = figures["throughput_samples_per_s"], figures["step_ms"]
    interval = (
        f"95 % interval {significant(throughput['low'], 4)} to {significant(throughput['high'], 4)}"
    )
    assert (
        " ".join(lines["throughput"].split()[1:])
        == f"{significant(throughput['value'], 4)} samples/s {interval}"
    )
    assert f"{duration(step['value'] * MS, 4)} " in lines["step"]
    assert f"{duration(step['low'] * MS)} to {duration(step['high'] * MS)}" in lines["step"]
    assert f"{figures['steps_used']} of {figures['steps_seen']} steps used" in text
    for reason, count in figures["steps_left_out"].items():
        assert f"{count} {reason}" in lines["steps"]
    for part in figures["phases"]:
        row = lines[part["phase"]]
        assert f" {percent(part['share']['value'])} " in row
        share = Estimate(part["share"]["value"], part["share"]["low"], part["share"]["high"])
        assert f" {share_range(share)} " in row
        assert f" {duration(part['step_ms']['value'] * MS)} " in row
    assert f" {significant(figures['last_loss'], 5)} at the last step " in lines["loss"]
    assert f" {significant(figures['first_loss'], 5)} at the first" in lines["loss"]
    own_cost = duration(figures["own_cost_ms_per_step"]["hooks"] * MS)
    assert f"profkit's cost  per step at least {own_cost} in the loop" in text
    assert "complete, no rows dropped" in text
    assert figures["data_quality"] == []


def test_notices_stand_in_both(run: Path, screen: Screen) -> None:
    _edit_manifest(run, state="aborted", why="interrupted", world_size=5)
    notices = _strict(screen("report", run, "--json")[1])["data_quality"]
    assert notices == ["the run was aborted: interrupted", "no files of 3 of 5 ranks"]
    assert "; ".join(notices) in screen("report", run)[1]


def test_with_three_steps_both_say_that_they_cannot_judge(tmp_path: Path, screen: Screen) -> None:
    run = synthetic_trace(tmp_path / "run", steps=3)
    code, text, _ = screen("report", run)
    json_code, data, _ = screen("report", run, "--json")
    figures = _strict(data)
    assert (code, json_code) == (ExitCode.DONE, ExitCode.DONE)
    assert "inconclusive: an interval needs 5 more steps" in text
    assert "no interval" in text
    assert (figures["verdict"], figures["steps_needed"]) == ("cannot judge", 5)
    assert figures["throughput_samples_per_s"]["low"] is None


def test_a_run_without_steps_is_unreadable_for_both(run: Path, screen: Screen) -> None:
    for folder in run.glob("r0*"):
        (folder / "steps.arrows").unlink()
    for form in ([], ["--json"]):
        code, out, error = screen("report", run, *form)
        assert (code, out) == (ExitCode.UNREADABLE, "")
        assert "holds no steps" in error


def test_numbers_that_json_does_not_know_are_null(run: Path, screen: Screen) -> None:
    _edit_manifest(
        run, config={"lr": math.nan, "decay": [math.inf, -math.inf, 0.5], "batch_size": 32}
    )
    data = screen("report", run, "--json")[1]
    assert _strict(data)["config"] == {"lr": None, "decay": [None, None, 0.5], "batch_size": 32}


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_a_run_that_is_all_warm_up_still_has_both_forms(
    tmp_path: Path, screen: Screen, steps: int
) -> None:
    run = synthetic_trace(tmp_path / "run", steps=steps, config={"warmup": steps})
    code, text, _ = screen("report", run)
    assert (code, _strict(screen("report", run, "--json")[1])["phases"]) == (ExitCode.DONE, [])
    assert "inconclusive: an interval needs 8 more steps" in text
    assert "nan" not in text


def test_steps_that_took_no_time_are_not_judged(tmp_path: Path, screen: Screen) -> None:
    run = tmp_path / "run"
    files = RankFiles(run / rank_folder(0), 0)
    same = [7] * 40
    files.write(
        "steps",
        {
            "step": range(40),
            "start_ns": same,
            "end_ns": same,
            "sample_count": same,
            "instrumented": [True] * 40,
        },
    )
    files.close()
    RunManifest(workload="frozen", state=RunState.COMPLETE).write(run)
    code, text, _ = screen("report", run)
    assert code == ExitCode.DONE
    assert "inconclusive: the used steps took no time at all" in text
    assert _strict(screen("report", run, "--json")[1])["throughput_samples_per_s"] == {
        "value": None,
        "low": None,
        "high": None,
    }


@pytest.fixture
def hostile_run(run: Path) -> Path:
    knobs = dict.fromkeys(
        ("precision", "device", "batch_size", "global_batch_size", "data", "reduced"), HOSTILE
    )
    return _edit_manifest(
        run, workload=HOSTILE, framework=HOSTILE, why=HOSTILE, state="aborted", config=knobs
    )


def test_no_name_in_a_run_can_steer_the_terminal(hostile_run: Path, screen: Screen) -> None:
    for arguments in (["report"], ["verify"], ["report", "--json"], ["verify", "--json"]):
        code, text, _ = screen(*arguments, hostile_run)
        assert code == ExitCode.DONE
        for line in text.splitlines():
            assert safe_text(line) == line
    assert _strict(screen("report", hostile_run, "--json")[1])["workload"] == HOSTILE


def test_hostile_and_long_names_stay_within_the_screen(hostile_run: Path, screen: Screen) -> None:
    for verb in ("report", "verify"):
        lines = screen(verb, hostile_run)[1].splitlines()
        assert [line for line in lines if len(line) > 100 and not line.startswith(COPIED)] == []
        assert "\\x1b]0;owned\\x07" in "".join(lines)


@pytest.mark.parametrize("large", ["data", "allreduce", "optimizer"])
def test_a_phase_that_takes_it_all_stays_within_the_screen(
    tmp_path: Path, screen: Screen, large: str
) -> None:
    run = synthetic_trace(tmp_path / "run", ranks=2, steps=60, phase_ns={large: 999_000 * MS})
    lines = screen("report", run)[1].splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith(COPIED)] == []
    assert "█" * 11 in _lines("\n".join(lines))[large]


def test_a_share_below_zero_has_no_bar_and_its_figure(run: Path, screen: Screen) -> None:
    longer = {"forward": 20 * MS}
    other = synthetic_trace(run.parent / "other", ranks=2, steps=80, phase_ns=longer)
    for rank in (
        "r00000",
        "r00001",
    ):  # spans of a run with longer phases, steps of one with shorter
        for file in ("spans.arrows", "strings.arrows"):
            shutil.copy(other / rank / file, run / rank / file)
    unknown = _lines(screen("report", run)[1])["unknown"]
    assert " -1" in unknown
    assert "█" not in unknown


def test_a_name_that_is_no_unicode_is_printed_by_both(run: Path, screen: Screen) -> None:
    _edit_manifest(run, workload="half a pair \udcff")
    assert "\nhalf a pair \\udcff · " in screen("report", run)[1]
    data = screen("report", run, "--json")[1]
    assert data.isascii()
    assert _strict(data)["workload"] == "half a pair \udcff"


def test_the_next_command_is_offered_where_there_is_one(run: Path) -> None:
    view = build_overview(Trace.open(run))
    assert show_text.document(overview(view, next_command="profkit report x")).splitlines()[
        -1
    ].split() == [
        "next",
        "profkit",
        "report",
        "x",
    ]
    assert "next" not in _lines(report_text(view))


def test_a_verification_and_its_json_tell_the_same(run: Path) -> None:
    shutil.rmtree(run / "r00001")
    (run / "r00000" / "samples.arrows").unlink()
    found = verify(run)
    text = show_text.sections(machine_sections.verification(found).sections)
    data = _strict(show_json.dumps(show_json.document(machine_sections.verification(found))))
    assert text.startswith(f"{data['state']}: ")
    for reason in data["reasons"]:
        assert reason in " ".join(text.split())
    assert data["rows_lost"] == found.lost > 0
    for table in data["tables"]:
        assert _lines(text)[table["table"]].split() == [
            table["table"],
            "1",
            *(f"{table[key]:,}" for key in ("rows", "rows_lost", "rows_dropped")),
        ]


def test_the_kernels_that_take_most_time_stand_with_their_place_under_the_ceilings(
    tmp_path: Path,
) -> None:
    trace = Trace.open(
        synthetic_trace(tmp_path / "run", steps=30, kernels_per_step=60, device="cuda")
    )
    ceilings = Ceilings(matrix_flops_per_s={"fp32": 1e15, "tf32": 1e15}, copy_bytes_per_s=1e13)
    bare, placed = (build_overview(trace, known) for known in (None, ceilings))
    assert placed.by_kernel is not None
    text = report_text(placed)
    for group in placed.by_kernel.groups[: kernel_sections.MOST_KERNELS]:
        (line,) = (line for line in text.splitlines() if line.strip().startswith(group.name[:24]))
        for words in (
            percent(group.share),
            duration(group.ns_per_step or 0.0),
            f"{group.calls:,}",
            group.bound or "-",
            percent(group.ceiling_share or 0.0, 0),
        ):
            assert words in line
    assert ", and 1 more" in text
    assert "of ceiling" not in report_text(bare)
    told = json.loads(show_json.dumps(report_json(placed)))["kernels_by_name"]["groups"]
    assert [(each["name"], each["total_ns"]) for each in told] == [
        (group.name, group.total_ns) for group in placed.by_kernel.groups
    ]
    assert (
        build_overview(Trace.open(synthetic_trace(tmp_path / "none", steps=30))).by_kernel is None
    )


@pytest.mark.parametrize("last", ["words " * 60, " " * 300, "x" * 300, ""])
def test_a_table_fits_the_screen_and_keeps_its_figures(last: str) -> None:
    header = ("name", "a figure with a long header", "text")
    grid = Grid(header, (("a long name " * 20, "1.25 ms", last),), frozenset({1}))
    lines = show_text.grid_text(grid).splitlines()
    assert max(map(len, lines)) <= 100
    assert "a figure with a long header" in lines[0]
    assert "1.25 ms" in lines[1]
    assert "".join(" ".join(lines).split()).count("words") == last.count("words")


def test_a_table_without_rows_is_empty() -> None:
    assert show_text.grid_text(Grid(("a", "b"), ())) == ""
