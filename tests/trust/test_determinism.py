"""One trace always gives the same bytes, for any hash seed, thread count and file order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace

SHOW_ALL = """
import sys
import pyarrow
from profkit.cli import main
pyarrow.set_cpu_count(int(sys.argv[1]))
for words in (
    ["report", "late", "--json"], ["explain", "base", "late", "--json"],
    ["explain", "base", "late", "late", "--json"], ["explain", "base", "late"],
    ["report", "late", "--format", "html"], ["explain", "base", "late", "--format", "html"],
    ["explain", "base", "late", "--format", "markdown"],
):
    assert main(words) == 0, words
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in {"base": 0, "late": 1}.items():
        synthetic_trace(
            folder / name,
            ranks=3,
            steps=60,
            seed=seed,
            kernels_per_step=6,
            rank_phase_ns={seed: {"forward": 20_000_000}},
            config={"workers": seed},
        )
    return folder


def _copy_in_order(source: Path, folder: Path, *, backwards: bool) -> Path:
    """A copy whose files were made in another order, as other file systems list them."""
    for path in sorted(source.rglob("*"), reverse=backwards):
        if path.is_file():
            (folder / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / path.relative_to(source))
    return folder


def test_the_bytes_are_the_same(runs: Path, tmp_path: Path) -> None:
    shown = set()
    for number, (seed, threads) in enumerate([("0", 1), ("1", 4), ("random", 2)]):
        folder = _copy_in_order(runs, tmp_path / str(number), backwards=number % 2 == 1)
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            [sys.executable, "-c", SHOW_ALL, str(threads)],
            cwd=folder,
            env=env,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        shown.add(done.stdout)
    assert len(shown) == 1
    assert len(shown.pop()) > 50_000
