"""A disk that never answers holds up neither the start nor the end of a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stuck_disk.c")
PATIENCE_S = 120

LOOP = """
import os, pathlib, sys, time, profkit
from profkit.run.job import current_job
disk, is_stuck = pathlib.Path(os.environ["STUCK_DISK"]), pathlib.Path(os.environ["STUCK_WHILE"])
tracker = current_job().tracker
for batch in profkit.loader(range(60)):
    with profkit.step():
        tracker.end(tracker.begin_backward())
        while batch == 50 and not is_stuck.exists() and not any(disk.rglob("steps.arrows")):
            time.sleep(0.01)
is_stuck.touch()
sys.exit(7)
"""
"""It trains for the recorder, which sees its backward, without a framework."""


class Disk:
    """A folder on a disk that does not answer while the file `is_stuck` exists."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            pytest.skip("no compiler for the disk that does not answer")
        self.folder, self.is_stuck = folder / "disk", folder / "is_stuck"
        self.folder.mkdir()
        library = folder / "stuck_disk.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        self.env = {
            **{name: value for name, value in os.environ.items() if "PROFKIT" not in name},
            "LD_PRELOAD": str(library),
            "STUCK_DISK": str(self.folder),
            "STUCK_WHILE": str(self.is_stuck),
            "PROFKIT_OUTPUT": str(self.folder / "traces"),
        }

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must not need the disk."""
        return subprocess.run(
            words, env=self.env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )

    def record(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script under `profkit run`."""
        command = [sys.executable, "-m", "profkit", "run", "--", "sh", "-c", script]
        return self.run(command)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def _only_line(said: str, *words: str) -> None:
    (line,) = said.splitlines()
    assert all(word in line for word in (*words, "--output")), line


def test_a_job_begins_unrecorded_and_ends_as_alone(disk: Disk) -> None:
    disk.is_stuck.touch()
    ended = disk.record("echo begun; exit 7")
    assert (ended.returncode, ended.stdout) == (7, "begun\n")
    _only_line(ended.stderr, str(disk.folder), "does not answer", "runs unrecorded")
    assert not any(disk.folder.rglob("*"))


def test_its_end_is_passed_on(disk: Disk) -> None:
    ended = disk.record('touch "$STUCK_WHILE"; exit 7')
    assert ended.returncode == 7
    start, _, end = ended.stderr.partition("\n")
    assert start.startswith("profkit: recording; ")
    _only_line(end, str(disk.folder), "does not answer", "cannot be marked as ended")


def test_repeats_end_after_the_first(disk: Disk) -> None:
    disk.is_stuck.touch()
    command = [sys.executable, "-m", "profkit", "run", "--repeats", "2", "--", "true"]
    ended = disk.run(command)
    assert "runs unrecorded" in ended.stderr
    assert "recorded nothing, so no further run" in ended.stderr


def test_a_python_of_the_job_starts(disk: Disk) -> None:
    """Its hooks leave a note in the run."""
    python = f"'{sys.executable}' -c 'print(5)'"
    ended = disk.record(f'touch "$STUCK_WHILE"; {python}; rm "$STUCK_WHILE"')
    assert (ended.returncode, ended.stdout) == (0, "5\n")


@pytest.mark.parametrize("is_stuck", [True, False], ids=["from the start", "at the end"])
def test_a_loop_ends_as_alone(disk: Disk, *, is_stuck: bool) -> None:
    if is_stuck:
        disk.is_stuck.touch()
    ended = disk.run([sys.executable, "-c", LOOP])
    assert ended.returncode == 7
    _only_line(ended.stderr, str(disk.folder))
    assert any(disk.folder.rglob("steps.arrows")) != is_stuck
