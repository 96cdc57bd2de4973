"""Notes that signal handlers, finalizers and two threads make and take come exactly once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.house.test_packaging import TOP

SOURCE = TOP / "instrument" / "tracking" / "_notes.c"
SCRIPT = Path(__file__).parent / "jobs" / "notes_stress.py"
SANITIZED = pytest.param(("-fsanitize=address", "-g"), id="sanitized", marks=pytest.mark.nightly)


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc is installed")
@pytest.mark.parametrize("flags", [pytest.param((), id="plain"), SANITIZED])
def test_each_note_is_taken_once(flags: tuple[str, ...], tmp_path: Path) -> None:
    built = tmp_path / f"_notes{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_paths()["include"]
    command = ["gcc", "-shared", "-fPIC", "-O1", *flags, f"-I{include}", str(SOURCE)]
    subprocess.run([*command, "-o", str(built)], check=True)
    environment = {**os.environ, "PYTHONMALLOC": "malloc" if flags else "default"}
    if flags:
        found = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        environment |= {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "20" if flags else "2"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 1_000
