"""Rows that another process writes are those that the job would write, whatever ends first."""

from __future__ import annotations

import enum
import gc
import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.clock import Anchor
from profkit.instrument.rows import EventRow
from profkit.run.outside import scribe_on
from profkit.scribe.messages import LARGEST_BYTES, Inbox, pack, socket_name
from profkit.scribe.sending import ENDED, SentRows, connect
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, verify
from profkit.trace.jsonfile import read_json
from profkit.trace.rank import RankTrace
from profkit.vocab import END_FILE, FULL_BYTES, ROW_TABLES, EventKind, rank_folder
from tests.scribe.finding import scribe_of

PATIENCE_S = 20.0


class Colour(str, enum.Enum):
    RED = "red"


ROWS: dict[str, list[tuple[Any, ...]]] = {
    "steps": [(step, 10 * step, 10 * step + 9, 4, None, None, True, 0) for step in range(3_000)],
    "spans": [
        (0, "forward", "forward", 0, "MainThread", 1, 2),
        (0, Colour.RED, "λ", 0, "MainThread", np.int64(1), 2, None, None, 8, "KeyError"),
    ],
    "events": [EventRow(None, 5, EventKind.UNMEASURED, "a", None, np.float32(2.5))],
    "samples": [(None, "workload", "lr", 7, 0.125)],
}


def manifest(rank: int = 0) -> RankManifest:
    return RankManifest(rank, "here", os.getpid(), "cpu", Anchor(1, 2, 3), world_size=2)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    RunManifest(workload="job", world_size=2).write(tmp_path)
    with scribe_on(tmp_path):
        yield tmp_path


def sent(run: Path, rank: int = 0, full_bytes: int = FULL_BYTES) -> SentRows:
    scribe = connect(run)
    assert scribe is not None
    return SentRows(scribe, run, manifest(rank), full_bytes)


def await_(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fill(writer: RankWriter) -> None:
    for table, rows in ROWS.items():
        for row in rows:
            writer.appender(table)(row)


def test_rows_are_those_that_the_job_would_write(tmp_path: Path, run: Path) -> None:
    fill(writer := RankWriter(run, manifest(), files=sent(run)))
    writer.drop("spans", 3)
    writer.close()
    own = tmp_path / "own"
    own.mkdir()
    RunManifest(workload="job", world_size=2).write(own)
    fill(writer := RankWriter(own, manifest()))
    writer.drop("spans", 3)
    writer.close()
    ours, theirs = (RankTrace(each / rank_folder(0), 0) for each in (run, own))
    assert ours.manifest == theirs.manifest
    assert ours.end is not None
    assert theirs.end is not None
    assert ours.end.dropped == 3
    assert ours.end.reason == theirs.end.reason == "complete"
    for table in ROW_TABLES:
        rows, expected = ours.table(table), theirs.table(table)
        if table == "samples":  # both note their own cost
            rows, expected = rows.slice(0, 1), expected.slice(0, 1)
        assert rows.to_pydict() == expected.to_pydict(), table
    assert verify(run).lost == 0


def test_two_ranks_are_written_at_once_and_the_description_is_replaced(run: Path) -> None:
    writers = [RankWriter(run, manifest(rank), files=sent(run, rank)) for rank in range(2)]
    for writer in writers:
        fill(writer)
        writer.describe(RankManifest(0, "there", 1, "cpu", Anchor(1, 2, 3), config={"model": "m"}))
        writer.close()
    trace = Trace.open(run)
    assert [rank.manifest.config for rank in trace.ranks] == [{"model": "m"}] * 2
    assert trace.steps.num_rows == 6_000


def test_what_is_no_message_of_ours_ends_no_other_rank(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sent(run)
    for packed in (b"\5\0\0\0hello", pack(("open",)), pack(("rows", 1)), b"\0" * 100):
        other = connect(run)
        assert other is not None
        other.sendall(packed)
        assert other.recv(100) == b""
        other.close()
    with monkeypatch.context() as patch:
        patch.setattr("profkit.scribe.sending.SCHEMA_VERSION", (0, 0))
        with pytest.raises(ConnectionError):  # a rank with another profkit writes itself
            sent(run, rank=1)
    assert not (run / rank_folder(1)).exists()
    files.write_rows("steps", ROWS["steps"])
    files.close("complete")
    assert Trace.open(run).steps.num_rows == 3_000


def test_a_rank_that_is_recorded_already_is_refused(run: Path) -> None:
    first = sent(run)
    with pytest.raises(FileExistsError):
        sent(run)
    first.close("complete")
    assert read_json(run / rank_folder(0) / END_FILE)["reason"] == "complete"


def test_rows_of_a_wrong_shape_are_counted_and_told(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RankWriter(run, manifest(), files=sent(run))
    with caplog.at_level(logging.WARNING):
        writer.appender("steps")(("no", "step"))
        writer.appender("spans")((object(),))
        writer.close()
    tables = read_json(run / rank_folder(0) / END_FILE)["tables"]
    assert tables["steps"]["dropped"] == tables["spans"]["dropped"] == 1
    assert "rows of steps could not be written and are counted as dropped" in caplog.text
    assert "rows of spans could not be written and are counted as dropped" in caplog.text


def test_a_disk_that_fails_ends_the_capture_and_not_the_job(run: Path) -> None:
    writer = RankWriter(run, manifest(), files=sent(run), interval_s=0.02)
    (writer._files.folder / "spans.arrows").mkdir()
    writer.appender("spans")(ROWS["spans"][0])
    await_(lambda: bool(writer.failure))
    assert "while writing spans" in writer.failure
    for _ in range(16):
        writer.is_full()
    assert writer.is_full()
    writer.close()
    end = read_json(run / rank_folder(0) / END_FILE)
    assert end["reason"] == writer.failure
    assert end["tables"]["spans"]["dropped"] == 1


def test_if_the_scribe_is_killed_the_job_goes_on_and_the_end_says_so(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RankWriter(run, manifest(), files=sent(run), interval_s=0.02)
    fill(writer)
    steps = run / rank_folder(0) / "steps.arrows"
    await_(lambda: steps.exists() and Trace.open(run).steps.num_rows == 3_000)
    os.kill(scribe_of(run), signal.SIGKILL)
    await_(lambda: bool(writer.failure))
    writer.appender("steps")(ROWS["steps"][0])
    writer.close()
    assert writer.failure == ENDED
    assert ENDED in caplog.text
    assert read_json(run / rank_folder(0) / END_FILE)["reason"] == ENDED
    assert Trace.open(run).steps.num_rows == 3_000


def test_a_scribe_that_stands_still_delays_no_end(run: Path) -> None:
    writer = RankWriter(run, manifest(), files=sent(run))
    fill(writer)
    pid = scribe_of(run)
    os.kill(pid, signal.SIGSTOP)
    try:
        before = time.monotonic()
        writer.close(timeout_s=0.3)
        assert time.monotonic() - before < 2.0
        assert "did not answer within" in writer.failure
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_scribe_that_gets_on_slowly_is_waited_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RankWriter(run, manifest(), files=sent(run))
    fill(writer)
    pid, ticks = scribe_of(run), itertools.count()
    monkeypatch.setattr(writer._files, "progress", lambda: next(ticks))
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.6, os.kill, (pid, signal.SIGCONT)).start()
    writer.close(timeout_s=0.2)
    assert writer.failure == ""
    assert read_json(run / rank_folder(0) / END_FILE)["reason"] == "complete"


def test_a_rank_that_dies_leaves_its_rows_and_no_end(run: Path) -> None:
    files = sent(run)
    files.write_rows("steps", ROWS["steps"])
    files.forget()
    steps = run / rank_folder(0) / "steps.arrows"
    await_(lambda: steps.exists() and RankTrace(steps.parent, 0).content("steps").closed)
    assert Trace.open(run).steps.num_rows == 3_000
    assert not (run / rank_folder(0) / END_FILE).exists()


def test_nothing_is_sent_to_a_file_that_has_taken_the_number(tmp_path: Path, run: Path) -> None:
    files = sent(run)
    number = files._scribe.fileno()
    other = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    mine, theirs = socket.socketpair()
    for descriptor in (other, mine.fileno()):
        os.dup2(descriptor, number)
        files.failure, files._is_lost = "", False
        files.write_rows("steps", ROWS["steps"][:1])
        assert files.failure == ENDED
    assert files.dropped["steps"] == 2
    files.close("complete")
    os.fstat(number)  # it is the job's, and open
    os.close(number)
    os.close(other)
    mine.close()
    assert theirs.recv(100) == b""
    assert (tmp_path / "theirs").read_bytes() == b""
    theirs.close()


def test_a_file_that_is_opened_later_under_the_number_stays_open(tmp_path: Path, run: Path) -> None:
    files = sent(run)
    number = files._scribe.fileno()
    os.close(number)
    files.close("complete")
    other = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, number)
    del files
    gc.collect()
    os.fstat(number)
    for descriptor in {other, number}:
        os.close(descriptor)


def test_a_forked_child_holds_no_connection(run: Path) -> None:
    files = sent(run)
    child = os.fork()
    if child == 0:
        os._exit(int(files._scribe.fileno() != -1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    files.close("complete")
    assert files.failure == ""


def test_without_a_scribe_there_is_no_connection(tmp_path: Path) -> None:
    assert connect(tmp_path) is None
    assert connect(tmp_path / "missing") is None
    with scribe_on(tmp_path), scribe_on(tmp_path):  # a second launcher of the run on this host
        files = sent(tmp_path)
        files.close("complete")
    assert connect(tmp_path) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_who_takes_the_name_gets_nothing(tmp_path: Path) -> None:
    name, (ready, say) = socket_name(tmp_path), os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65_534)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        os.write(say, b"1")
        time.sleep(PATIENCE_S)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert connect(tmp_path) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(say)


def test_messages_arrive_in_any_pieces() -> None:
    messages = [("rows", "steps", [(1, None, 2.5, "é\udcff", True)]), ("flush",)]
    packed = b"".join(map(pack, messages))
    for size in (1, 3, 7, len(packed)):
        inbox, found = Inbox(), []
        for start in range(0, len(packed), size):
            found += inbox.take(packed[start : start + size])
        assert found == messages


@pytest.mark.parametrize(
    "piece",
    [
        (LARGEST_BYTES + 1).to_bytes(4, "little"),
        b"\0\0\0\0",
        b"\1\0\0\0N",
        b"\5\0\0\0hello",
        b"\2\0\0\0)\0",
    ],
)
def test_what_is_no_message_is_refused(piece: bytes) -> None:
    with pytest.raises(ValueError, match="message"):
        Inbox().take(piece)
