"""Stacks of loader workers: files of lines, read whatever is in them, and the lines they name."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.stack_samples import WAITING
from profkit.trace import RunManifest, Trace, verify
from profkit.trace.integrity import this_process
from profkit.vocab import (
    LINES_SUFFIX,
    LOADER_WORKER,
    WORKER_STACKS,
    Integrity,
    RunState,
    rank_folder,
)
from tests.analysis.test_stacks import MS, write_run
from tests.documents import report_json, report_text

STEPS, STEP_MS = 40, 100
QUEUE = "/usr/lib/python3/multiprocessing/queues.py"
FRAMES: Sequence[Sequence[Any]] = (
    (0, None, "/lib/site-packages/torch/worker.py", "_worker_loop", 300, "package"),
    (1, 0, "/home/x/data.py", "Items.__getitem__", 12, "job"),
    (2, 1, "/lib/site-packages/PIL/Image.py", "decode", 5, "package"),
    (3, 0, QUEUE, "Queue.get", 100, "python"),
)


def lines_of(worker: int, *, steps: int = STEPS) -> list[Any]:
    """Return a worker that decodes for 60 ms of each 100 ms, and then waits."""
    lines: list[Any] = [["worker", worker, 70 + worker]]
    lines += [["frame", *frame] for frame in FRAMES]
    for at in range(5, steps * STEP_MS, 10):
        lines.append(["sample", at * MS, 0, 10 * MS, 2 if at % STEP_MS < 60 else 3])
    return [*lines, ["cost", steps * STEP_MS * MS, 4 * MS]]


def write_lines(run: Path, worker: int, lines: Sequence[Any], rank: int = 0) -> Path:
    folder = run / rank_folder(rank) / WORKER_STACKS
    folder.mkdir(exist_ok=True)
    path = folder / f"{worker}-{70 + worker}{LINES_SUFFIX}"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", steps=STEPS)
    return tmp_path / "run"


def test_the_line_of_the_workers_is_named_with_its_time(run: Path) -> None:
    for worker in range(2):
        write_lines(run, worker, lines_of(worker))
    view = build_overview(Trace.open(run))
    found = view.worker_lines
    assert found is not None
    assert found.workers == 2
    first, second = found.lines
    assert (first.place.file, first.place.line) == ("/home/x/data.py", 12)
    assert first.place.below == "decode"
    assert first.step_ns.value == pytest.approx(2 * 60 * MS)
    assert second.place.file == WAITING
    assert found.sampler_share == pytest.approx(1e-3)
    text = report_text(view)
    assert "In the loader's workers" in text
    assert "data.py:12 Items.__getitem__ (decode)" in text
    figures = report_json(view)["code_of_workers"]
    assert figures["lines"][0]["line"] == 12
    assert figures["lines"][1]["why_no_line"] == WAITING


def test_a_run_without_them_has_no_section(run: Path) -> None:
    view = build_overview(Trace.open(run))
    assert view.worker_lines is None
    assert report_json(view)["code_of_workers"] is None


@pytest.mark.parametrize("end", range(0, 4000, 97))
def test_a_file_that_ends_anywhere_is_read(run: Path, end: int) -> None:
    """A worker is killed at any moment: what it wrote before can be read."""
    path = write_lines(run, 0, lines_of(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:end])
    found = Trace.open(run).worker_stacks
    assert found.stacks.num_rows == sum(
        line.startswith(b'["sample"') for line in whole[:end].split(b"\n")[:-1]
    ) + (whole[end - 1 : end] == b"]")
    assert found.broken <= 1


BROKEN: Sequence[Any] = (
    ["sample", 1, 2, 3],
    ["sample", 1, 0, 1, 99],
    ["sample", -1, 0, 1, 0],
    ["sample", 2**63, 0, 1, 0],
    ["sample", 1, 0, True, 0],
    ["sample", "1", 0, 1, 0],
    ["frame", 9, None, "f", "g", 1, "job"],
    ["frame", 4, None, 5, "g", 1, "job"],
    ["frame", 4, None, "f", "g", 2**40, "job"],
    ["cost", None, 1],
    ["other"],
    [],
    {"sample": 1},
    7,
    None,
    "sample",
)


@pytest.mark.parametrize("line", BROKEN, ids=str)
def test_a_line_that_is_none_of_ours_is_counted(run: Path, line: object) -> None:
    write_lines(run, 0, [*lines_of(0), line])
    found = Trace.open(run).worker_stacks
    assert found.broken == 1
    assert found.stacks.num_rows == STEPS * 10
    assert found.frames.num_rows == len(FRAMES)


def test_bytes_that_are_no_lines_are_counted(run: Path) -> None:
    path = write_lines(run, 0, [])
    path.write_bytes(bytes(range(256)) * 40)
    found = Trace.open(run).worker_stacks
    assert found.broken
    assert not found.stacks.num_rows


def test_workers_of_several_ranks_keep_their_frames(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=STEPS, clip_ms=(30, 30))
    for rank in range(2):
        for worker in range(2):
            write_lines(tmp_path / "run", worker, lines_of(worker), rank)
    found = Trace.open(tmp_path / "run").worker_stacks
    assert found.frames.num_rows == 4 * len(FRAMES)
    assert set(found.stacks["thread"].to_pylist()) == {f"{LOADER_WORKER}{n}" for n in range(2)}
    view = build_overview(Trace.open(tmp_path / "run")).worker_lines
    assert view is not None
    assert view.workers == 4
    assert view.lines[0].step_ns.value == pytest.approx(2 * 60 * MS)
    alone = found.of_rank(1)
    assert alone.stacks.num_rows == found.stacks.num_rows // 2
    assert alone.elapsed_ns == found.elapsed_ns // 2


def test_few_samples_name_no_line(run: Path) -> None:
    write_lines(run, 0, lines_of(0, steps=2))
    text = report_text(build_overview(Trace.open(run)))
    assert "20 samples only, so no line is named" in text
    assert "Items.__getitem__" not in text


@pytest.mark.parametrize("every_ns", [0, 2**62])
def test_damaged_times_between_samples_give_no_impossible_figures(run: Path, every_ns: int) -> None:
    lines = lines_of(0)
    for line in lines:
        if line[0] == "sample":
            line[3] = every_ns
    write_lines(run, 0, lines)
    found = build_overview(Trace.open(run)).worker_lines
    assert found is None or found.step_ns >= 0


def write_checked(run: Path, worker: int, lines: Sequence[Any], *, writes: int = 8) -> Path:
    """Write a file as a worker does: a checksum follows the lines of each write."""
    path = write_lines(run, worker, [])
    text = b'["check", 0]\n'
    for number in range(writes):
        share = lines[number * len(lines) // writes : (number + 1) * len(lines) // writes]
        part = "".join(f"{json.dumps(line)}\n" for line in share).encode()
        text += part + f'["check", {zlib.crc32(part)}]\n'.encode()
    path.write_bytes(text)
    return path


def reasons_of(run: Path) -> list[str]:
    return [reason for reason in verify(run).reasons if WORKER_STACKS in reason]


def test_verify_counts_the_samples_of_whole_files(run: Path) -> None:
    for worker in range(2):
        write_checked(run, worker, lines_of(worker))
    before, found = verify(run), Trace.open(run).worker_stacks
    assert not found.broken
    assert before.state is Integrity.COMPLETE
    assert not reasons_of(run)
    (check,) = (each for each in before.tables if each.table == WORKER_STACKS)
    assert (check.rows, check.lost) == (found.stacks.num_rows, 0)


@pytest.mark.parametrize("end", range(20, 8000, 397))
def test_verify_names_a_file_that_was_cut_anywhere(run: Path, end: int) -> None:
    path = write_checked(run, 0, lines_of(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:end])
    ends = [at for at in range(1, len(whole) + 1) if whole[:at].endswith(b"]\n")]
    is_whole = end in ends and b"check" in whole[:end].splitlines()[-1]
    assert bool(reasons_of(run)) is (end < len(whole) and not is_whole)
    assert verify(run).state is (Integrity.COMPLETE if is_whole else Integrity.ENDED_EARLY)


@pytest.mark.parametrize("at", range(14, 8000, 397))
def test_verify_names_a_file_in_which_one_bit_changed(run: Path, at: int) -> None:
    path = write_checked(run, 0, lines_of(0))
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    (reason,) = reasons_of(run)
    assert reason.startswith(f"rank 0: {WORKER_STACKS}/{path.name}: ")
    assert verify(run).state in {Integrity.TORN, Integrity.ENDED_EARLY}


def test_a_file_that_is_being_written_is_no_damage(run: Path) -> None:
    path = write_checked(run, 0, lines_of(0))
    path.write_bytes(path.read_bytes()[:-30])
    manifest = RunManifest.read(run)
    dataclasses.replace(manifest, state=RunState.RUNNING, owner=this_process()).write(run)
    (run / rank_folder(0) / "end.json").unlink(missing_ok=True)
    assert not reasons_of(run)


def test_verify_names_files_that_cannot_be_read(run: Path) -> None:
    """A pipe has no writer, so that opening it as a file would wait for ever."""
    good = write_checked(run, 0, lines_of(0))
    os.mkfifo(good.with_name(f"1-71{LINES_SUFFIX}"))
    good.with_name(f"2-72{LINES_SUFFIX}").mkdir()
    good.with_name(f"3-\x1b[31m\n{LINES_SUFFIX}").write_bytes(b"\x00\xff\n")
    reasons = reasons_of(run)
    assert len(reasons) == 3
    assert "1-71.jsonl: cannot be read (not a plain file" in reasons[0]
    assert "2-72.jsonl: cannot be read" in reasons[1]
    assert reasons[2].isprintable()
    assert reasons[2].endswith("1 line cannot be read")
    assert verify(run).state is Integrity.TORN
    assert Trace.open(run).worker_stacks.stacks.num_rows == STEPS * 10


def test_a_file_in_place_of_the_folder_is_named(run: Path) -> None:
    (run / rank_folder(0) / WORKER_STACKS).write_bytes(b"")
    (reason,) = reasons_of(run)
    assert "cannot be listed" in reason
