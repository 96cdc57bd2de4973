"""Modules in C refuse each Python for which they were not compiled."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.house.test_packaging import TOP

SOURCES = sorted(
    path
    for folder in ("profkit", "instrument", "collectors")
    for path in (TOP / folder).rglob("*.c")
)
SCANNER = TOP / "profkit" / "importers" / "reading" / "_scan.c"
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc is installed")


def compile_with(source: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    include = sysconfig.get_paths()["include"]
    command = ["gcc", "-shared", "-fPIC", f"-I{include}", str(source), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_module_compiles_for_free_threaded_python() -> None:
    """It would switch the lock of the interpreter on for the whole job."""
    assert len(SOURCES) >= 6
    for source in SOURCES:
        usual = compile_with(source, "-fsyntax-only")
        refused = compile_with(source, "-fsyntax-only", "-DPy_GIL_DISABLED")
        assert "free-threaded" not in usual.stderr, source
        assert "free-threaded" in refused.stderr, source


def test_a_module_of_another_python_is_not_imported(tmp_path: Path) -> None:
    built = tmp_path / f"_scan{sysconfig.get_config_var('EXT_SUFFIX')}"
    for flags, error in (([], ""), (['-DCOMPILED_FOR="2.7."'], "compiled for Python 2.7.")):
        done = compile_with(SCANNER, "-o", str(built), *flags)
        assert done.returncode == 0, done.stderr
        command = [sys.executable, "-c", "import _scan"]
        tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (error in tried.stderr) if error else tried.returncode == 0, tried.stderr
