"""A file of predictions that is named on the command line, and is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from profkit import cli
from profkit.errors import ExitCode
from profkit.testing.synthetic import synthetic_trace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return synthetic_trace(tmp_path / "run", ranks=2, steps=30)


@pytest.mark.parametrize("verb", ["report", "whatif", "mcp"])
@pytest.mark.parametrize("form", [["--predictions", "{}"], ["--predictions={}"]])
def test_a_file_that_is_not_there_is_refused(
    verb: str, form: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = run.parent / "no such.jsonl"
    words = [word.format(missing) for word in form]
    target = ["--root", str(run.parent)] if verb == "mcp" else [str(run)]
    assert cli.main([verb, *target, *words]) == ExitCode.UNREADABLE
    shown = capsys.readouterr()
    assert not shown.out
    remedy = f"'profkit whatif RUN --link 2x --predictions '{missing}'' makes one"
    assert shown.err == (
        f"profkit: --predictions {missing}: no such file of predictions; {remedy}\n"
    )


def test_a_folder_is_no_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run), "--predictions", str(run)]) == ExitCode.UNREADABLE
    assert f"{run}: not a file, and predictions are in one" in capsys.readouterr().err


def test_a_setting_may_name_a_file_that_is_yet_to_be_made(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFKIT_PREDICTIONS", str(run.parent / "later.jsonl"))
    assert cli.main(["report", str(run)]) == ExitCode.DONE


def test_a_question_makes_the_file(run: Path) -> None:
    file = run.parent / "new.jsonl"
    cli.main(["whatif", str(run), "--link", "2x", "--predictions", str(file)])
    assert file.is_file()
    assert cli.main(["report", str(run), "--predictions", str(file)]) == ExitCode.DONE
