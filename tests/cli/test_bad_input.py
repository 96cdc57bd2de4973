"""Each mistake gets one line that names the place and the remedy, and its exit code."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.cli import main
from tests.cli.conftest import Command


def _complaint(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("profkit: ")
    return lines[0]


def test_an_unknown_verb_names_the_nearest(profkit: Command) -> None:
    assert "unknown verb 'reprot'; did you mean 'report'?" in _complaint(profkit("reprot"), 2)
    for word, verb in {"diff": "explain", "compair": "explain", "profil": "run"}.items():
        complaint = _complaint(profkit(word), 2)
        assert f"unknown verb '{word}'; did you mean '{verb}'?" in complaint
    own = "recorded by 'profkit run -- python train.py'"
    assert own in _complaint(profkit("trace", "train.py"), 2)


def test_an_unknown_workload_names_the_nearest(profkit: Command) -> None:
    line = _complaint(profkit("trace", "resnet5"), 2)
    assert "unknown workload 'resnet5'; did you mean 'resnet50'?" in line


def test_no_verb_shows_the_help_and_is_wrong_usage(profkit: Command) -> None:
    done = profkit()
    assert done.returncode == 2
    assert "your job:" in done.stdout


def test_a_folder_that_is_no_run(profkit: Command, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    assert "notes: not a run (it has no run.json)" in _complaint(profkit("report", "notes"), 3)


def test_an_empty_folder(profkit: Command, tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    line = _complaint(profkit("verify", "void"), 3)
    assert "void: an empty folder" in line
    assert "profkit run" in line


def test_a_folder_that_is_not_there_tells_of_runs_beside_it(profkit: Command, run: Path) -> None:
    line = _complaint(profkit("report", run.parent / "tow-ranks"), 3)
    assert "no such folder" in line
    assert str(run) in line


def test_a_folder_of_runs_names_one(profkit: Command, run: Path) -> None:
    line = _complaint(profkit("report", run.parent), 3)
    assert "holds 1 run" in line
    assert str(run) in line


def test_a_file_is_no_run(profkit: Command, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    assert "trace.json: a file, and a run is a folder" in _complaint(
        profkit("report", "trace.json"), 3
    )


@pytest.mark.parametrize("verb", ["report", "verify"])
def test_a_run_of_a_newer_major_version(
    profkit: Command, run: Path, tmp_path: Path, verb: str
) -> None:
    newer = tmp_path / "newer"
    shutil.copytree(run, newer)
    manifest = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**manifest, "schema_version": [3, 0]}))
    line = _complaint(profkit(verb, newer), 3)
    assert "written in schema 3.0" in line
    assert "newer profkit" in line


@pytest.mark.parametrize("verb", ["report", "verify"])
@pytest.mark.parametrize("denied", [".", "run.json"])
def test_a_run_without_read_permission(run: Path, tmp_path: Path, verb: str, denied: str) -> None:
    """As a user who owns nothing of it; root may read everything, so root becomes nobody."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become a user without permission")
    locked = tmp_path / "locked"
    shutil.copytree(run, locked)
    for path in (tmp_path, *tmp_path.parents[:-1]):
        if path.stat().st_uid == os.getuid() and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    (locked / denied).chmod(0o700 if denied == "." else 0o600)
    line = _complaint(_as_nobody(verb, locked, run), 3)
    assert "no permission to read it" in line
    assert "chmod" in line


def _as_nobody(verb: str, path: Path, readable: Path) -> subprocess.CompletedProcess[str]:
    """Run the command once as root on a good run, so that everything is imported.

    The user `nobody` may not read the environment.
    """
    code = """if True:
        import contextlib, io, os, sys
        from profkit.cli import main
        with contextlib.redirect_stdout(io.StringIO()):
            assert main([sys.argv[1], sys.argv[3]]) == 0
        os.setgid(65534)
        os.setuid(65534)
        sys.exit(main(sys.argv[1:3]))
    """
    return subprocess.run(
        [sys.executable, "-c", code, verb, str(path), str(readable)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "0"], "argument --steps: 0 is out of range: at least 1"),
        (["--steps", "many"], "argument --steps: 'many' is not a whole number"),
        (["--lr", "nan"], "argument --lr: nan is not a number above zero"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--framework", "paddel"], "resnet50 has no paddel version"),
        (["--data", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_a_wrong_option_of_trace(profkit: Command, arguments: list[str], told: str) -> None:
    done = profkit("trace", "resnet50", *arguments)
    assert told in _complaint(done, 3 if "--data" in arguments else 2)


def test_a_name_with_escapes_is_shown_as_text(profkit: Command, tmp_path: Path) -> None:
    line = _complaint(profkit("report", "a\x1b]0;owned\x07b"), 3)
    assert "\\x1b]0;owned\\x07" in line


def test_an_output_folder_that_cannot_be_made(profkit: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = profkit(
        "trace",
        "resnet50",
        "--steps",
        "1",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "-o",
        "taken",
    )
    assert done.returncode == 1
    assert "taken: cannot make a run's folder there" in done.stderr.splitlines()[-1]
    assert "--output" in done.stderr.splitlines()[-1]


def test_a_place_that_may_not_be_searched_is_named_by_every_verb(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert main(["history", "elsewhere"]) == 3
    assert "profkit: elsewhere: no permission; have its owner" in capsys.readouterr().err
