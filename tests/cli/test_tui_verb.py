"""The interface as a command line: output without a terminal, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from tests.cli.conftest import Command


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_without_a_terminal_a_run_is_reported_and_that_is_said(profkit: Command, run: Path) -> None:
    done = profkit("tui", run, env={"TERM": "xterm"})
    assert done.returncode == ExitCode.DONE
    assert "no terminal here" in done.stderr
    assert "Where a step goes" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_without_a_terminal_a_folder_is_listed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tui", str(run.parent)]) == ExitCode.DONE
    output = capsys.readouterr()
    assert "no terminal here" in output.err
    assert run.name in output.out
    assert "samples/s" in output.out


def test_json_of_a_run_is_that_of_its_screen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(run), "--json"]) == ExitCode.DONE
    overview = json.loads(capsys.readouterr().out)
    assert sum(part["ns_per_step"]["value"] for part in overview["parts"]) == pytest.approx(
        overview["wall_ns_per_step"]
    )
    assert (
        main(["tui", str(run), "--screen", "explain", "--base", str(run), "--json"])
        == ExitCode.DONE
    )
    assert json.loads(capsys.readouterr().out)["verdict"] == "neutral"


def test_json_of_a_folder_lists_its_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tui", str(run.parent), "--json"]) == ExitCode.DONE
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["run"], row["ranks"], row["state"]) == (str(run), 2, "complete")


def test_a_picture_needs_no_terminal(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    assert (
        main(
            [
                "tui",
                str(run),
                "--screenshot",
                str(picture),
                "--size",
                "90x30",
                "--theme",
                "light",
                "--ascii",
            ]
        )
        == ExitCode.DONE
    )
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{run}", "--screen", "overvew", "--json"], ExitCode.USAGE, "did you mean 'overview'?"),
        (["{run}", "--screen", "explain", "--json"], ExitCode.USAGE, "add --base RUN"),
        (["{folder}", "--screen", "kernels", "--json"], ExitCode.USAGE, "name one of them"),
        (["{run}", "--size", "12"], ExitCode.USAGE, "is not a size such as 120x40"),
        (["{run}", "--size", "9999x40"], ExitCode.USAGE, "out of range"),
        (["{run}", "--theme", "pink"], ExitCode.USAGE, "invalid choice"),
        (["{run}/nothing"], ExitCode.UNREADABLE, "no such folder"),
        (["{run}/run.json"], ExitCode.UNREADABLE, "a run is a folder"),
        (
            ["{run}", "--base", "{folder}/none", "--screen", "explain", "--json"],
            ExitCode.UNREADABLE,
            "no such folder",
        ),
        (
            ["{run}", "--screenshot", "{folder}/none/x.svg"],
            ExitCode.UNFINISHED,
            "may be written to",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], code: ExitCode, words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tui", *(word.format(run=run, folder=run.parent) for word in arguments)]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err
    assert len(output.err.splitlines()) == 1
