"""`profkit bench --batch-size max`: the search, with a fake in place of the runs on a GPU."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.analysis.matrix import Setting
from profkit.bench import largest
from profkit.bench.largest import largest_batch, with_largest_batches
from profkit.bench.run import Plan
from profkit.cli import main
from profkit.errors import ProfkitError


@given(limit=st.integers(1, 5000), start=st.integers(1, 512))
def test_the_largest_batch_is_found_to_a_sixteenth(limit: int, start: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found = largest_batch(fits, start)
    assert found <= limit < found + max(1, found // 16) + 1
    assert len(tried) == len(set(tried)) <= 30


def test_a_device_without_room_for_one_sample_is_an_error() -> None:
    with pytest.raises(ProfkitError, match="not even a batch of one"):
        largest_batch(lambda size: False, 8)


class FakeTrace:
    """Replacement for the runs: fp32 fits up to 100 samples, mixed precision up to 200."""

    def __init__(self, words: str = "rank 0: out of device memory with batch 9 per rank") -> None:
        self.words = words
        self.calls: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str], log: Path, limit_s: float | None) -> int:
        self.calls.append(words)
        size = int(dict(itertools.pairwise(words))["--batch-size"])
        failed = size > (200 if "--amp" in words else 100)
        log.write_text(f"profkit: {self.words}\n" if failed else "")
        return int(failed)


def plan() -> Plan:
    cells = (Setting(1, "fp32", 32, "none", "torch"), Setting(1, "amp", 32, "none", "torch"))
    return Plan("resnet50", "--gpus", cells, 1, 0, ("--steps", "200"))


def test_each_cell_gets_its_own_size_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTrace()
    monkeypatch.setattr(largest, "run_logged", fake)
    found = with_largest_batches(plan(), tmp_path, lambda words: None)
    sizes = [setting.batch_size for setting in found.settings]
    assert 94 <= sizes[0] <= 100
    assert 188 <= sizes[1] <= 200
    assert all(words[-2:] == ["--steps", "10"] for words in fake.calls)
    fake.calls.clear()
    assert with_largest_batches(plan(), tmp_path, lambda words: None) == found
    assert not fake.calls


def test_a_trial_that_hangs_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(words: Sequence[str], log: Path, limit_s: float | None) -> int:
        raise subprocess.TimeoutExpired("profkit", 2.0)

    monkeypatch.setattr(largest, "run_logged", hang)
    with pytest.raises(ProfkitError, match="batch 32 did not end within 2 s"):
        with_largest_batches(plan(), tmp_path, lambda words: None)


def test_another_failure_is_not_taken_for_a_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(largest, "run_logged", FakeTrace("the driver is too old"))
    with pytest.raises(ProfkitError, match="not for lack of memory: profkit: the driver is too"):
        with_largest_batches(plan(), tmp_path, lambda words: None)


def test_on_a_cpu_there_is_nothing_to_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "resnet50", "--ranks", "1", "--batch-size", "max", "--data", "synthetic"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "on a CPU there is no device memory to search" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
