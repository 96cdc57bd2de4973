"""The file of the lengths of a rank's last steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from profkit.trace.files import RankFiles
from profkit.trace.pulse import MOST_STEPS, PULSE_FILE, PulseTail, PulseWriter, read_pulse


def add(pulse: PulseWriter, first: int, count: int) -> None:
    steps = range(first, first + count)
    pulse.add(list(steps), [1_000 * step for step in steps], [1_010 * step for step in steps])


def numbers(folder: Path, after: int = -1) -> list[int]:
    found = read_pulse(folder, after)
    assert found is not None
    steps: list[int] = found[0].tolist()
    assert found[1].tolist() == [10 * step for step in steps]
    return steps


def test_steps_after_a_number_are_read_in_their_order(tmp_path: Path) -> None:
    pulse = PulseWriter(tmp_path)
    assert numbers(tmp_path) == []
    add(pulse, 0, 5)
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    add(pulse, 5, 2)
    assert numbers(tmp_path, 3) == [4, 5, 6]


@pytest.mark.parametrize("batch", [1, 700, MOST_STEPS, MOST_STEPS + 1, 3 * MOST_STEPS])
def test_only_the_last_steps_are_kept(tmp_path: Path, batch: int) -> None:
    pulse, end = PulseWriter(tmp_path), 0
    while end < 2 * MOST_STEPS + 100:
        add(pulse, end, batch)
        end += batch
    assert numbers(tmp_path) == list(range(end - MOST_STEPS, end))
    assert (tmp_path / PULSE_FILE).stat().st_size == 16 * MOST_STEPS


def test_the_file_is_there_while_a_rank_writes(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / "r00000", 0)
    rows: dict[str, list[Any]] = {
        "step": [0, 1],
        "start_ns": [0, 1_000],
        "end_ns": [1_000, 1_500],
        "sample_count": [1, 1],
        "instrumented": [True, True],
    }
    files.write("steps", rows)
    found = read_pulse(files.folder, -1)
    assert found is not None
    assert [found[0].tolist(), found[1].tolist()] == [[0, 1], [1_000, 500]]
    files.close()
    assert read_pulse(files.folder, -1) is None


def test_a_file_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = PulseWriter(tmp_path)
    add(pulse, 0, 5)

    def fail(*args: object) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    add(pulse, 5, 5)
    assert read_pulse(tmp_path, -1) is None
    add(pulse, 10, 5)
    assert PulseWriter(tmp_path / "missing")
    assert read_pulse(tmp_path / "missing", -1) is None


def test_a_file_that_is_cut_gives_the_steps_that_it_has(tmp_path: Path) -> None:
    add(PulseWriter(tmp_path), 0, 5)
    os.truncate(tmp_path / PULSE_FILE, 16 * 3 + 7)
    assert numbers(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("batch", [1, 7, 300, MOST_STEPS - 1])
def test_a_reader_that_follows_gets_each_length_once(tmp_path: Path, batch: int) -> None:
    pulse, tail, first = PulseWriter(tmp_path), PulseTail(tmp_path), 0
    assert tail.read() == []
    while first < 2 * MOST_STEPS + 100:
        add(pulse, first, batch)
        assert tail.read() == [10 * step for step in range(first, first + batch)]
        first += batch
    assert tail.read() == []


def test_a_reader_that_was_late_gets_the_newest_length_last(tmp_path: Path) -> None:
    pulse, tail = PulseWriter(tmp_path), PulseTail(tmp_path)
    add(pulse, 0, 5)
    assert len(tail.read()) == 5
    add(pulse, 5, 3 * MOST_STEPS)
    tail.read()
    add(pulse, 5 + 3 * MOST_STEPS, 3)
    assert tail.read()[-1:] == [10 * (7 + 3 * MOST_STEPS)]


def test_a_reader_that_follows_a_file_that_is_gone_or_cut_gets_nothing(tmp_path: Path) -> None:
    tail = PulseTail(tmp_path)
    assert tail.read() == []
    pulse = PulseWriter(tmp_path)
    add(pulse, 0, 5)
    os.truncate(tmp_path / PULSE_FILE, 37)
    assert tail.read() == [0, 10]
    pulse.close()
    assert tail.read() == []
