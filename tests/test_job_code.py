"""The job's own code in stacks of jobs that are scripts, and of jobs that are installed."""

from __future__ import annotations

import pytest

from profkit.hangs.status import Frame, name_own, own_frame
from profkit.job_code import CodeLine, mark_own
from profkit.vocab import OWN_CODE, PACKAGE_CODE, PYTHON_CODE

PACKAGES = "/opt/lib/python3.11/site-packages"
RUNPY = CodeLine("<frozen runpy>", "_run_code", 88, is_own=False)
LOOP = CodeLine(f"{PACKAGES}/acme/loop.py", "main", 30, is_own=False)
CLIP = CodeLine(f"{PACKAGES}/acme/ops.py", "clip", 4, is_own=False)
TORCH = CodeLine(f"{PACKAGES}/torch/nn/linear.py", "Linear.forward", 5, is_own=False)
SPAWN = CodeLine(f"{PACKAGES}/torch/multiprocessing/spawn.py", "_wrap", 9, is_own=False)
HELPER = CodeLine(f"{PACKAGES}/acme_tools/log.py", "log", 7, is_own=False)
STARTER = CodeLine("/opt/bin/acme-train", "<module>", 8, is_own=True)
SCRIPT = CodeLine("/home/me/train.py", "<module>", 8, is_own=True)
PROGRAM = CodeLine("/opt/bin/acme-train", "<module>", 80, is_own=True)


@pytest.mark.parametrize(
    ("frames", "own"),
    [
        ((SCRIPT, LOOP, TORCH), [SCRIPT]),
        ((RUNPY, LOOP, CLIP, HELPER, TORCH), [LOOP, CLIP]),
        ((STARTER, LOOP, CLIP, TORCH), [LOOP, CLIP]),
        ((SPAWN, LOOP, TORCH), [LOOP]),
        ((PROGRAM, TORCH), [PROGRAM]),
        ((STARTER, TORCH), [STARTER]),
        ((RUNPY, TORCH), []),
        ((), []),
    ],
)
def test_the_own_code_of_an_installed_job(
    frames: tuple[CodeLine, ...], own: list[CodeLine]
) -> None:
    marks = mark_own(frames)
    assert [frame for frame, mark in zip(frames, marks, strict=True) if mark] == own


def test_a_rank_of_an_installed_job_stands_at_its_line() -> None:
    lock = Frame("/usr/lib/python3.11/threading.py", "Condition.wait", 320, PYTHON_CODE)
    stack = [lock]
    for line, origin in ((CLIP, PACKAGE_CODE), (LOOP, PACKAGE_CODE), (STARTER, OWN_CODE)):
        stack.append(Frame(line.file, line.function, line.line, origin))
    found = own_frame(name_own(stack), OWN_CODE)
    assert found is not None
    assert (found.file, found.line) == (CLIP.file, CLIP.line)
