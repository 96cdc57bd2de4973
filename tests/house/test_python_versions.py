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

READS = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import _frames, _glance

def inner(number):
    yield number
    with may_go:
        pass

def outer():
    return sorted([1], key=lambda number: list(inner(number)))

def churn():
    number = 0
    while not ended:
        number += 1
        space = {}
        exec(f"def made(x):\\n    return [(z, {number}) for z in range(x)]", space)
        space["made"](number % 20)

may_go, ended = threading.Lock(), False
may_go.acquire()
thread = threading.Thread(target=outer)
thread.start()
time.sleep(0.2)
known = _frames.stack_of(thread.ident, 128, None)
assert [code.co_name for code, _ in known][:3] == ["inner", "<lambda>", "outer"], known
assert _glance.look(thread.ident, 0, None)[0] == known
assert _frames.stacks()[thread.ident] == known
may_go.release()
thread.join()
busy = threading.Thread(target=churn)
busy.start()
until = time.monotonic() + 1
while time.monotonic() < until:
    found = _glance.look(busy.ident, time.monotonic_ns() + 200_000, None)
    assert found is None or all(line >= 0 for _, line in found[0])
    _frames.stack_of(busy.ident, 128, None)
ended = True
busy.join()
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
    done = subprocess.run(
        [python, "-X", "faulthandler", "-c", READS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
