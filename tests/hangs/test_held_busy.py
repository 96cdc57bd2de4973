"""Stacks that are read while Python code runs: nothing crashes, and no wrong one is written."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.house.test_packaging import TOP
from tests.house.test_python_versions import ABOUT, interpreters

SOURCE = TOP / "profkit/run/lookout/_held.c"
FAST = "-DTURN_NS=100000L"
"""A thousand turns where there is one."""

BEGIN = """
import ctypes, sys, threading, time
sys.path.insert(0, sys.argv[1])
import _held

native = ctypes.PyDLL(None)
out = open(sys.argv[2], "w")
assert _held.write_to(out.fileno())

def leaf(number):
    if number % 20 == 0:
        _held.watch(0)
    return [number, str(number)]

def fails(number):
    try:
        leaf(number)
        raise ValueError(number)
    except ValueError:
        return leaf(number + 1)

def counts(number):
    for each in range(number % 7):
        yield leaf(each)

def middle(number):
    fails(number)
    for each in counts(number):
        pass
    space = {}
    exec(f"def made(x):\\n    return [(z, {number}) for z in range(x)]", space)
    return space["made"](number % 20)

def hold():
    assert _held.watch(0)
    native.usleep(20_000)
"""
THREADS = """
sys.setswitchinterval(1e-4)
ended = False

def busy():
    number = 0
    while not ended:
        number += 1
        middle(number)

threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(100):
    hold()
ended = True
for thread in threads:
    thread.join()
"""
LONG_TURN = """
sys.setswitchinterval(1000)
for _ in range(2):
    assert _held.watch(0)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        fails(1)
"""


def run(python: str, script: str, folder: Path, *flags: str) -> str:
    """Run the script with this Python, and return what was written."""
    told = subprocess.run([python, "-c", ABOUT], capture_output=True, text=True, check=True)
    include, suffix = told.stdout.split()[-2:]
    if not (Path(include) / "Python.h").exists():
        pytest.skip(f"the headers of {python} are not installed")
    built = folder / f"_held{suffix}"
    command = ["gcc", "-shared", "-fPIC", "-O2", *flags, f"-I{include}", str(SOURCE), "-o"]
    subprocess.run([*command, str(built), "-lpthread"], check=True, capture_output=True)
    (folder / "job.py").write_text(BEGIN + script)
    done = subprocess.run(
        [python, str(folder / "job.py"), str(folder), str(folder / "stack")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "stack").read_text()


@pytest.mark.parametrize("python", interpreters())
def test_the_stacks_beside_busy_threads_are_right(python: str, tmp_path: Path) -> None:
    """Each caller stands at a line with the name of the function that it calls."""
    text = run(python, THREADS, tmp_path, FAST)
    lines = (BEGIN + THREADS).splitlines()
    tree = ast.walk(ast.parse(BEGIN + THREADS))
    spans = {
        node.name: range(node.lineno, (node.end_lineno or 0) + 1)
        for node in tree
        if isinstance(node, ast.FunctionDef)
    }
    held = 0
    for report in text.split("Timeout (no Python code could run)!\n")[1:]:
        for part in report.split("\n\n"):
            callee = ""
            for file, number, name in re.findall(r'File "(.*)", line (\d+) in (.*)', part):
                if file.endswith("job.py"):
                    line = lines[int(number) - 1]
                    assert int(number) in spans.get(name, range(1, len(lines) + 1)), part
                    assert callee in line, part
                    held += "usleep" in line
                    callee = name
                elif file == "<string>":
                    callee = "space"
                else:
                    callee = ""
    assert held


@pytest.mark.parametrize("python", interpreters())
def test_python_code_that_lets_no_other_run_has_no_stack(python: str, tmp_path: Path) -> None:
    assert run(python, LONG_TURN, tmp_path) == ""
