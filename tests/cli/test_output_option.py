"""`-o` names the folder of runs in every verb, and `-w` the file to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.cli import VERBS, build_parser
from tests.cli.conftest import Command

WRITING = ("report", "explain", "export")


@pytest.mark.parametrize("verb", VERBS)
def test_the_letter_means_the_same_in_every_verb(verb: str) -> None:
    group = build_parser((verb,))._subparsers
    assert group is not None
    (subparsers,) = group._group_actions
    for action in subparsers.choices[verb]._actions:  # type: ignore[index]
        if "-o" in action.option_strings:
            assert "--output" in action.option_strings
            assert action.metavar == "FOLDER"
        assert ("-w" in action.option_strings) == ("--write" in action.option_strings)


def test_a_report_of_the_newest_run_in_a_folder(profkit: Command, run: Path) -> None:
    done = profkit("report", "-o", run.parent, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["run"] == str(run)


def test_an_export_of_the_newest_run_in_a_folder(
    profkit: Command, run: Path, tmp_path: Path
) -> None:
    done = profkit("export", "-o", run.parent, "--format", "chrome", "-w", tmp_path / "run.json")
    assert done.returncode == 0
    assert json.loads((tmp_path / "run.json").read_text())


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("flag", ["-w", "--write"])
def test_a_file_is_written(
    profkit: Command, run: Path, tmp_path: Path, verb: str, flag: str
) -> None:
    runs = (run, run) if verb == "explain" else (run,)
    done = profkit(verb, *runs, flag, tmp_path / "made.json")
    assert (done.returncode, (tmp_path / "made.json").exists()) == (0, True)


@pytest.mark.parametrize("verb", ["report", "export"])
def test_a_name_that_may_be_a_folder_is_not_written_to(
    profkit: Command, tmp_path: Path, verb: str
) -> None:
    done = profkit(verb, "-o", "mistyped")
    assert done.returncode == 2
    assert "there is none in mistyped" in done.stderr
    assert not (tmp_path / "mistyped").exists()


def test_a_folder_given_by_the_environment_is_never_written_to(
    profkit: Command, run: Path, tmp_path: Path
) -> None:
    for verb in ("report", "export"):
        done = profkit(verb, run, env={"PROFKIT_OUTPUT": "not-made-yet"})
        assert done.returncode == 0
    assert not (tmp_path / "not-made-yet").exists()


def test_explain_has_no_folder_of_runs(profkit: Command, run: Path) -> None:
    done = profkit("explain", run, run, "-o", run.parent)
    assert done.returncode == 2
    assert "-o" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completions_offer_the_file(profkit: Command, shell: str) -> None:
    assert "write" in profkit("completions", shell).stdout
