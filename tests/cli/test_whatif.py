"""The verb `whatif`: answers, exit codes, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace
from tests.cli.conftest import Command

LATE = {1: {"forward": 20_000_000}}


@pytest.fixture
def late(tmp_path: Path) -> Path:
    return synthetic_trace(tmp_path / "runs" / "late", ranks=2, rank_phase_ns=LATE)


def test_the_answer_with_what_it_rests_on(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late, "--without", "late_rank")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("Without a late rank", "best guess", "rests on", "a replay of", "interval"):
        assert word in done.stdout


def test_the_same_as_json(profkit: Command, late: Path) -> None:
    done = profkit(
        "whatif", late, "--without", "late_rank", "--link", "2x", "--ranks", "64", "--json"
    )
    found = json.loads(done.stdout)
    first, *others = found["predictions"]
    assert first["question"]["cause"] == "late_rank"
    assert first["conclusive"]
    assert first["step_ns"]["low"] < first["step_ns"]["value"] < found["step_ns"]["value"]
    assert first["saved_ns"]["low"] > 0
    assert first["speed_up_ratio"]["value"] > 1
    by_kind = {each["question"]["kind"]: each for each in others}
    assert by_kind["ranks"]["by_ranks"][-1]["ranks"] == 1_024
    assert by_kind["link"]["by_ranks"] == []
    assert abs(found["replay_error_share"]) < 0.01


def test_without_a_question_all_that_the_run_answers(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late)
    assert done.returncode == 0
    assert "Without a late rank" in done.stdout
    assert "Links 2.00 times as fast" in done.stdout
    assert [path.name for path in late.parent.iterdir()] == ["late"], "nothing is written"


def test_an_inconclusive_answer_has_its_exit_code(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late, "--workers", "2")
    assert done.returncode == 11
    assert "inconclusive" in done.stdout
    assert "measure next" in done.stdout


def test_the_best_guess_and_its_range_come_first(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late, "--faster", "forward=2x")
    sections = done.stdout.partition("\nForward 2.00 times as fast\n")[2].splitlines()
    assert "best guess" in sections[0]
    assert "interval" in sections[0]
    assert "what phases take from each other" in done.stdout


def test_the_summary_is_a_sentence(profkit: Command, late: Path) -> None:
    words = " ".join(profkit("whatif", late).stdout.split())
    assert "answers conclusive: the recorded run takes" in words


def test_a_page_about_the_run_has_what_it_predicts(
    profkit: Command, late: Path, tmp_path: Path
) -> None:
    page = tmp_path / "run.html"
    done = profkit("report", late, "-w", page)
    assert done.returncode == 0
    text = page.read_text()
    assert "<h2>What would help</h2>" in text
    assert "without a late rank" in text
    assert "What would help" in profkit("report", late).stdout


def test_the_chart_of_ranks(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late, "--ranks", "64")
    assert "1,024" in done.stdout
    assert "████" in done.stdout
    assert "straggler tail" in done.stdout


def test_another_run_as_the_base(profkit: Command, late: Path) -> None:
    base = synthetic_trace(late.parent / "base", ranks=2)
    done = profkit("whatif", late, "--base", base, "--without", "late_rank")
    assert done.returncode == 0
    assert "explain's cost of the cause" in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--link", "0x"], 2, "out of range"),
        (["--link", "fast"], 2, "not a factor"),
        (["--link", "nan"], 2, "out of range"),
        (["--faster", "dat=2x"], 2, "did you mean 'data'?"),
        (["--faster", "data"], 2, "not a phase and a factor, such as data=2x"),
        (["--faster", "data=0"], 2, "out of range"),
        (["--workers", "-1"], 2, "out of range"),
        (["--ranks", "0"], 2, "out of range"),
        (["--ranks", "5000"], 2, "out of range"),
        (["--without", "late_rnk"], 2, "unknown cause 'late_rnk'; did you mean"),
        (["--base", "nowhere", "--without", "late_rank"], 3, "no such folder"),
        (["--base", "nowhere", "--link", "2x"], 2, "--base helps"),
    ],
)
def test_bad_input_is_one_line(
    profkit: Command, late: Path, options: list[str], code: int, words: str
) -> None:
    done = profkit("whatif", late, *options)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_a_run_without_steps(profkit: Command, tmp_path: Path) -> None:
    run = synthetic_trace(tmp_path / "run", steps=12)
    (run / "r00000" / "steps.arrows").unlink()
    done = profkit("whatif", run, "--link", "2x")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


def test_settings_of_jobs_are_no_questions(profkit: Command, late: Path) -> None:
    done = profkit("whatif", late, "--link", "2x", "--json", env={"PROFKIT_WORKERS": "16"})
    assert len(json.loads(done.stdout)["predictions"]) == 1
