"""Real programs are recorded as an independent probe sees them; `make programs` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "programs"))

from compare import judge  # the folder has to be on the path first
from launch import run_pair  # as above
from registry import PROGRAMS, Program  # as above

IN_TESTS = [program for program in PROGRAMS if program.in_tests]


@pytest.mark.parametrize("program", IN_TESTS, ids=lambda program: program.name)
def test_a_program_is_recorded_as_the_probe_saw_it(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    run_pair(program, Path(sys.executable), folder)
    verdict = judge(program, folder)
    if verdict.skipped.startswith("not installed"):
        pytest.skip(verdict.skipped)
    if verdict.skipped:  # it failed without profkit: ranks may not meet on a busy machine
        folder = tmp_path / "again"
        run_pair(program, Path(sys.executable), folder)
        verdict = judge(program, folder)
    assert not verdict.skipped, (folder / "result.json").read_text()
    assert verdict.misses == ()
