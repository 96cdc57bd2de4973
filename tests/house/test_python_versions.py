"""The modules in C are right with each supported version of Python that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.test_packaging import PROJECT, TOP

MODULES = {
    each["name"]: (TOP / each["sources"][0], each["extra-compile-args"])
    for each in PROJECT["tool"]["setuptools"]["ext-modules"]
}
FIRST = (3, 10)

ABOUT = """
import sysconfig
print(sysconfig.get_paths()["include"], sysconfig.get_config_var("EXT_SUFFIX"))
"""


def interpreters() -> list[str]:
    """Return the Pythons of this machine that profkit supports."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable]
    for python in sorted(root.glob("3.*/bin/python")):
        version = tuple(map(int, python.parts[-3].split(".")[:2]))
        if FIRST <= version <= (3, 13) and version != sys.version_info[:2]:
            found.append(str(python))
    return found


@pytest.mark.parametrize("python", interpreters())
def test_the_modules_in_c_are_right(python: str, tmp_path: Path) -> None:
    """One that calls what is not declared ends the job with a SIGSEGV."""
    told = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, check=True)
    include, suffix = told.stdout.split()[-2:]
    if not (Path(include) / "Python.h").exists():
        pytest.skip(f"the headers of {python} are not installed")
    for name, (source, flags) in MODULES.items():
        output = tmp_path / f"{name.rpartition('.')[2]}{suffix}"
        command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", f"-I{include}", *flags]
        done = subprocess.run(
            [*command, str(source), "-o", str(output), "-ldl", "-lpthread"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
