"""The rows of a run after a kill, a cut, a full disk, a fork, or an invalid row."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from profkit.clock import Anchor
from profkit.errors import UnreadableError
from profkit.schema import SCHEMAS
from profkit.testing import synthetic_trace
from profkit.trace import RankManifest, RankWriter, RunManifest, Trace, Verification, verify
from profkit.trace.files import MANY_ROWS, RankFiles
from profkit.trace.integrity import TableCheck
from profkit.trace.reader import LOST_NAME
from profkit.trace.writer import CALLS_PER_COUNT, CLOSING_LOOKS, TURN_S
from profkit.vocab import END_FILE, RANK_FILE, RUN_FILE, Integrity, RunState, rank_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PATIENCE_S = 240
MANIFEST = RankManifest(0, platform.node(), 0, "cpu", Anchor(1, 2, 3))


def _span(index: int, name: str = "forward") -> tuple[Any, ...]:
    return (index, "forward", name, 0, "MainThread", index, index + 1, None, None, None, None)


def _end_run(run: Path) -> Verification:
    RunManifest(workload="test", state=RunState.COMPLETE).write(run)
    return verify(run)


def _check_of(found: Verification, table: str) -> TableCheck:
    (check,) = (check for check in found.tables if check.table == table)
    return check


def _steps_read(run: Path, table: str = "spans") -> list[int]:
    steps: list[int] = Trace.open(run).table(table)["step"].to_pylist()
    return steps


def _wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.001)


def _run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `script` in a fresh interpreter, with the usual imports; it must succeed."""
    preamble = (
        "import os, sys\nfrom pathlib import Path\nfrom profkit.clock import Anchor\n"
        "from profkit.trace import RankManifest, RankWriter\nrun = Path(sys.argv[1])\n"
    )
    code = preamble + textwrap.dedent(script)
    ended = subprocess.run(
        [sys.executable, "-B", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended


# --- killed ---------------------------------------------------------------------------------------


def _run_benchmark(name: str, *arguments: object) -> str:
    """Run a benchmark at a smaller size. It exits 1 if a promise is broken."""
    ended = subprocess.run(
        [sys.executable, BENCHMARKS / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.measured
def test_a_killed_writer_loses_no_row_older_than_a_second() -> None:
    said = _run_benchmark(
        "kill.py", "--trials", 4, "--rows", 100_000, "--seconds", 1.5, "--seed", 11
    )
    assert "4 trials: 0 rows older than a second lost" in said
    assert said.count("ended early") >= 2, said  # some were killed in the middle


def test_a_run_that_is_killed_before_its_first_row_can_be_verified(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", _KILLED_AT_ONCE, str(tmp_path)])
    assert ended.wait(PATIENCE_S) == -signal.SIGKILL
    assert verify(tmp_path).state is Integrity.ENDED_EARLY
    assert Trace.open(tmp_path).spans.num_rows == 0


_KILLED_AT_ONCE = """
import os, platform, signal, sys
from pathlib import Path
from profkit.clock import Anchor
from profkit.trace import RankManifest, RankWriter, RunManifest
from profkit.trace.integrity import this_process
run = Path(sys.argv[1])
RunManifest(workload="test", owner=this_process()).write(run)
RankWriter(run, RankManifest(0, platform.node(), os.getpid(), "cpu", Anchor(1, 2, 3)))
os.kill(os.getpid(), signal.SIGKILL)
"""


# --- cut ------------------------------------------------------------------------------------------


def test_a_table_cut_at_any_byte_gives_only_rows_that_were_written_and_is_torn() -> None:
    said = _run_benchmark(
        "truncate.py", "--table", "steps", "--size", 5_500, "--end-record", "present"
    )  # 64 KB take minutes
    positions = re.search(r"([0-9,]+) positions", said)
    assert positions
    assert f"torn {positions[1]}; " in said


def test_a_table_of_a_killed_run_cut_at_any_byte_is_torn_or_ended_early() -> None:
    said = _run_benchmark(
        "truncate.py", "--table", "steps", "--size", 5_500, "--end-record", "absent"
    )
    assert "ended early" in said
    assert "torn" in said


def test_names_cut_at_any_byte_cost_names_and_no_rows(tmp_path: Path) -> None:
    files = RankFiles(tmp_path / rank_folder(0), 0)
    MANIFEST.write(files.folder)
    columns = {
        "depth": [0] * 5,
        "start_ns": range(5),
        "end_ns": range(5),
        "thread": ["0.0"] * 5,
        "phase": ["0.1"] * 5,
    }
    for part in range(3):
        files.write("spans", {**columns, "name": [f"{part}.{number}" for number in range(5)]})
    files.close()
    assert _end_run(tmp_path).state is Integrity.COMPLETE
    whole = Trace.open(tmp_path).spans["name"].to_pylist()
    seen = set()
    for size in _cuts(files.folder / "strings.arrows"):
        found = Trace.open(tmp_path).spans["name"].to_pylist()
        kept = next((at for at, name in enumerate(found) if name == LOST_NAME), len(found))
        assert found == [*whole[:kept], *[LOST_NAME] * (len(whole) - kept)], size
        assert verify(tmp_path).state is Integrity.TORN
        seen.add(kept)
    assert seen == {0, 5, 10, 15}


@pytest.mark.parametrize("name", [RUN_FILE, f"r00000/{RANK_FILE}", f"r00000/{END_FILE}"])
def test_a_record_cut_at_any_byte_is_named_or_readable(tmp_path: Path, name: str) -> None:
    run = synthetic_trace(tmp_path / "run", steps=5)
    whole = Trace.open(run).steps
    last = (run / name).stat().st_size - 1  # without its newline it is still whole
    for size in _cuts(run / name):
        assert verify(run).state is (Integrity.COMPLETE if size == last else Integrity.TORN), size
        if name == RUN_FILE and size < last:
            with pytest.raises(UnreadableError, match=RUN_FILE):
                Trace.open(run)
        else:
            _check_reading(
                Trace.open(run), whole, broken=name.rpartition("/")[2] if size < last else ""
            )


def _check_reading(trace: Trace, whole: pa.Table, *, broken: str) -> None:
    """Check that all rows are readable with a broken record; only reading the record fails."""
    assert trace.steps.equals(whole)
    asks: dict[str, Callable[[], object]] = {
        RANK_FILE: lambda: trace.ranks[0].manifest,
        END_FILE: lambda: trace.dropped,
    }
    for record, ask in asks.items():
        if record == broken:
            with pytest.raises(UnreadableError, match=record):
                ask()
        else:
            ask()


def _cuts(path: Path) -> Iterator[int]:
    """Cut `path` to each size below its own, from the largest down."""
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        yield size


# --- a disk that is full or broken ----------------------------------------------------------------

_FILLS_ITS_DISK = """
    import contextlib, time
    writer = RankWriter(
        run, RankManifest(0, "here", os.getpid(), "cpu", Anchor(1, 2, 3)), interval_s=0.02
    )
    append = writer.appender("spans")
    for index in range(60_000):
        value = hash(str(index))
        name = f"layer {index}"
        times = index * index, -index
        append((index, "forward", name, 0, "MainThread", *times, None, None, value, None))
        if index % 1000 == 0:
            time.sleep(0.002)
        while index == 2000 and any(map(len, writer._rows.values())):
            time.sleep(0.002)  # so many fit, however late the writer's thread comes
    while not writer.failure:
        time.sleep(0.01)
    if fill_the_rest:
        rest = run / "of another program"
        with contextlib.suppress(OSError), open(rest, "wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
    append((1, "forward", "late", 0, "MainThread", 1, 1, None, None, None, None))
    writer.close()
    print(writer.failure)
"""


def test_a_job_goes_on_when_its_files_may_grow_no_more(tmp_path: Path) -> None:
    limited = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "fill_the_rest = False\n" + textwrap.dedent(_FILLS_ITS_DISK)
    )
    ended = _run_script(limited, tmp_path)
    assert "File too large while writing" in ended.stdout
    _check_full(tmp_path, ended.stdout.strip())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB, which only root may make."""
    mount = shutil.which("mount")
    if os.geteuid() or not mount:
        pytest.skip("mounting a small file system needs root and mount")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "profkit-test", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_job_goes_on_when_its_disk_is_full(small_disk: Path) -> None:
    ended = _run_script("fill_the_rest = True\n" + textwrap.dedent(_FILLS_ITS_DISK), small_disk)
    assert "No space left on device while writing" in ended.stdout
    (small_disk / "of another program").unlink()
    _check_full(small_disk, ended.stdout.strip())


def _check_full(run: Path, failure: str) -> None:
    """The capture ended early, for the reason that the writer gave, and its files end cleanly."""
    found = _end_run(run)
    assert found.state is Integrity.ENDED_EARLY, found
    assert found.reasons == (f"rank 0 stopped capturing: {failure}",)
    steps = _steps_read(run)
    assert len(steps) > 1000
    assert steps == list(range(len(steps)))
    assert LOST_NAME not in Trace.open(run).spans["name"].to_pylist()
    assert _check_of(found, "spans").dropped == 60_001 - len(steps)
    assert all(Trace.open(run).ranks[0].content(table).closed for table in ("spans", "strings"))


class _FailingCalls:
    """Replaces a function of `os`: its n-th call raises, and with `for_good` all later ones."""

    def __init__(
        self, real: Callable[..., Any], nth: int, code: int, *, for_good: bool, some: int = 0
    ) -> None:
        self._real, self._nth, self._code, self._for_good, self._some = (
            real,
            nth,
            code,
            for_good,
            some,
        )
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == self._nth or (self._for_good and self.calls > self._nth):
            if self._some and self.calls == self._nth:
                self._real(arguments[0], arguments[1][: self._some])
            raise OSError(self._code, os.strerror(self._code))
        return self._real(*arguments)


def _write_in_bursts(run: Path) -> RankWriter:
    """Ten bursts of two tables, each on its own turn of the writer's thread."""
    writer = RankWriter(run, MANIFEST, interval_s=0.001)
    for burst in range(10):
        for index in range(burst * 50, burst * 50 + 50):
            writer.appender("spans")(_span(index, f"layer {index // 25}"))
            writer.appender("steps")((index, index, index, 1, None, None, True, None))
        _wait_for(lambda: not any(map(len, writer._rows.values())))
    writer.close(timeout_s=20)
    return writer


@pytest.mark.parametrize(
    ("code", "for_good"),
    [(errno.ENOSPC, False), (errno.EIO, True)],
    ids=["ENOSPC once", "EIO for good"],
)
def test_a_write_that_fails_at_any_time_never_raises_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, for_good: bool
) -> None:
    for nth in range(1, 41):
        run = tmp_path / str(nth)
        failing = _FailingCalls(os.write, nth, code, for_good=for_good, some=nth)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing)
            writer = _write_in_bursts(run)
        found = _end_run(run)
        if failing.calls < nth:
            assert found.state is Integrity.COMPLETE
            continue
        assert os.strerror(code) in writer.failure
        assert found.state is Integrity.ENDED_EARLY, (nth, found)
        assert writer.failure in found.reasons[0]
        _check_what_is_left(run, found.dropped)


def _check_what_is_left(run: Path, dropped: int) -> None:
    spans, steps = _steps_read(run), _steps_read(run, "steps")
    assert spans == list(range(len(spans)))
    assert steps == list(range(len(steps)))
    # Up to two more: the writer drops rows about its own cost as well.
    assert len(spans) + len(steps) + dropped in {1000, 1001, 1002}
    assert LOST_NAME not in Trace.open(run).spans["name"].to_pylist()


@pytest.mark.parametrize("call", ["open", "replace", "ftruncate", "close"])
def test_other_calls_to_a_broken_disk_never_raise_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    writer = RankWriter(tmp_path, MANIFEST, interval_s=60)
    for index in range(200):
        writer.appender("spans")(_span(index))
    real_close = os.close
    with monkeypatch.context() as patch:
        patch.setattr(
            os, call, _FailingCalls(getattr(os, call), 1, errno.EIO, for_good=call != "close")
        )
        if call == "ftruncate":
            patch.setattr(
                os, "write", _FailingCalls(os.write, 2, errno.EIO, for_good=True, some=40)
            )
        writer.close(timeout_s=20)
    assert "Input/output error" in writer.failure
    assert _end_run(tmp_path).state in {Integrity.ENDED_EARLY, Integrity.TORN}
    assert _steps_read(tmp_path) == list(range(len(_steps_read(tmp_path))))
    assert os.close is real_close


def test_a_folder_that_vanishes_ends_the_capture_and_nothing_else(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path / "run", MANIFEST, interval_s=0.005)
    writer.appender("spans")(_span(0))
    _wait_for((tmp_path / "run" / rank_folder(0) / "spans.arrows").exists)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    writer.appender("steps")((0, 0, 0, 1, None, None, True, None))
    _wait_for(lambda: writer.failure)
    writer.close()
    assert "No such file" in writer.failure


class _HangingWrite:
    """Replaces `os.write` and blocks until it is released, like an unresponsive network disk."""

    def __init__(self) -> None:
        self.real = os.write
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, file: int, data: Any) -> int:
        self.reached.set()
        assert self.released.wait(PATIENCE_S)
        return self.real(file, data)


def test_a_pause_of_the_machine_is_no_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed thread is waited for after every check but the last, however long one took."""
    writer = RankWriter(tmp_path, MANIFEST, interval_s=60)
    writer.appender("spans")(_span(0))
    join, looks = writer._thread.join, iter(range(CLOSING_LOOKS))
    monkeypatch.setattr(
        writer._thread,
        "join",
        lambda timeout_s: join(0 if next(looks) < CLOSING_LOOKS - 1 else PATIENCE_S),
    )
    writer.close()
    assert writer.failure == ""
    assert _end_run(tmp_path).state is Integrity.COMPLETE


@pytest.mark.parametrize("when", ["while the job runs", "as the job ends"])
def test_closing_gives_up_on_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    hanging = _HangingWrite()
    monkeypatch.setattr(os, "write", hanging)
    writer = RankWriter(tmp_path, MANIFEST, interval_s=0.01 if when == "while the job runs" else 60)
    writer.appender("spans")(_span(0))
    if when == "while the job runs":
        assert hanging.reached.wait(PATIENCE_S)
    writer.close(timeout_s=0.2)
    assert writer._thread.is_alive()
    assert "did not answer within 0.2 s" in writer.failure
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    hanging.released.set()
    writer._thread.join(PATIENCE_S)
    assert _end_run(tmp_path).state is Integrity.ENDED_EARLY
    assert "did not answer" in verify(tmp_path).reasons[0]


# --- rows of the wrong shape ----------------------------------------------------------------------

_MISSHAPEN: dict[str, tuple[Any, ...]] = {
    "too short": (1, 2),
    "too long": (*_span(1), 1),
    "text for a number": ("one", *_span(1)[1:]),
    "number for a name": (1, 7, *_span(1)[2:]),
    "null where none may be": (*_span(1)[:5], None, *_span(1)[6:]),
    "no number at all": (object(), *_span(1)[1:]),
    "a number too large": (2**70, *_span(1)[1:]),
    "a list for a name": (1, [], *_span(1)[2:]),
}


@pytest.mark.parametrize("row", list(_MISSHAPEN.values()), ids=list(_MISSHAPEN))
def test_a_misshapen_row_is_dropped_with_one_warning_and_the_capture_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, row: tuple[Any, ...]
) -> None:
    writer = RankWriter(tmp_path, MANIFEST, interval_s=0.005)
    for index in range(3):
        writer.appender("spans")(_span(index, name=f"layer {index}"))
        _wait_for(lambda: not writer._rows["spans"])
        writer.appender("spans")(row)
        _wait_for(lambda: not writer._rows["spans"])
    writer.close()
    found = _end_run(tmp_path)
    assert (found.state, found.dropped, writer.failure) == (Integrity.COMPLETE, 3, "")
    assert _steps_read(tmp_path) == [0, 1, 2]
    assert Trace.open(tmp_path).spans["name"].to_pylist() == ["layer 0", "layer 1", "layer 2"]
    assert len(caplog.records) == 1
    assert "rows of spans could not be written" in caplog.text


def test_numbers_of_numpy_are_rows_like_any_other(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, MANIFEST)
    writer.appender("steps")(
        (
            np.int64(7),
            np.int32(1),
            np.uint8(2),
            np.int64(3),
            np.float32(0.5),
            None,
            np.True_,
            np.int16(4),
        )
    )
    writer.close()
    assert _end_run(tmp_path).state is Integrity.COMPLETE
    assert Trace.open(tmp_path).steps.to_pylist() == [
        {
            "rank": 0,
            "step": 7,
            "start_ns": 1,
            "end_ns": 2,
            "sample_count": 3,
            "loss": 0.5,
            "grad_scale": None,
            "instrumented": True,
            "epoch": 4,
        }
    ]


def test_a_job_has_turns_while_many_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    monkeypatch.setattr(time, "sleep", turns.append)
    for count, least, most in (
        (MANY_ROWS - 1, 0, 0),
        (MANY_ROWS, len(SCHEMAS["spans"]), 2 * len(SCHEMAS["spans"])),
    ):
        writer = RankWriter(tmp_path / str(count), MANIFEST)
        for index in range(count):
            writer.appender("spans")(_span(index))
        writer.close()
        assert least <= turns.count(TURN_S) <= most
        assert _end_run(tmp_path / str(count)).state is Integrity.COMPLETE
        assert _steps_read(tmp_path / str(count)) == list(range(count))


def test_rows_that_pile_up_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profkit.trace.writer.LARGEST_BACKLOG", 10)
    writer = RankWriter(tmp_path, MANIFEST, interval_s=60)
    for index in range(11):
        assert not writer.is_full()
        writer.appender("spans")(_span(index))
    assert any(writer.is_full() for _ in range(CALLS_PER_COUNT + 1))
    writer.close()
    assert _steps_read_after(tmp_path) == list(range(11))


def _steps_read_after(run: Path) -> list[int]:
    _end_run(run)
    return _steps_read(run)


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, MANIFEST)
    writer.close()
    before = (tmp_path / rank_folder(0) / END_FILE).read_bytes()
    writer.appender("spans")(_span(0))
    writer.close()
    assert (tmp_path / rank_folder(0) / END_FILE).read_bytes() == before


def test_rows_that_many_threads_hand_over_are_all_written_once(tmp_path: Path) -> None:
    writer = RankWriter(tmp_path, MANIFEST, interval_s=0.001)
    append = writer.appender("spans")
    threads = [
        threading.Thread(
            target=lambda part=part: [append(_span(index)) for index in range(part, 40_000, 4)]
        )
        for part in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(timeout_s=20)
    assert sorted(_steps_read_after(tmp_path)) == list(range(40_000))


# --- forks ----------------------------------------------------------------------------------------

_FORKS = """
    import time, warnings
    # Python 3.12 warns of forks in processes with threads, which is intended here.
    warnings.simplefilter("ignore", DeprecationWarning)
    writer = RankWriter(
        run, RankManifest(0, "here", os.getpid(), "cpu", Anchor(1, 2, 3)), interval_s=0.01
    )
    append = writer.appender("spans")

    def add(first, count):
        for index in range(first, first + count):
            name = f"layer {index % 7}"
            append((index, "forward", name, 0, "MainThread", index, index, None, None, None, None))

    def child_work():
        add(900_000, 500)
        time.sleep(0.1)
        writer.close()

    add(0, 1000)
    time.sleep(0.05)
    add(1000, 1000)  # these may wait in the buffer that the children inherit
"""

_FORK_ALONE = """
    child = os.fork()
    if child == 0:
        child_work()
        sys.exit(0)  # with all that an ordinary exit runs
    add(2000, 1000)
    assert os.waitpid(child, 0)[1] == 0
    add(3000, 1000)
    writer.close()
"""

_FORK_WORKERS = """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=child_work) for _ in range(4)]
    for worker in workers:
        worker.start()
    add(2000, 1000)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    add(3000, 1000)
    writer.close()
"""

_FORK_AND_KILL = """
    import signal
    child = os.fork()
    if child == 0:
        child_work()
        os.kill(os.getpid(), signal.SIGKILL)
    add(2000, 2000)
    os.waitpid(child, 0)
    writer.close()
"""


@pytest.mark.parametrize(
    "script",
    [_FORK_ALONE, _FORK_WORKERS, _FORK_AND_KILL],
    ids=["os.fork", "multiprocessing workers", "a killed child"],
)
def test_forked_children_neither_write_nor_end_the_trace(tmp_path: Path, script: str) -> None:
    _run_script(_FORKS + script, tmp_path)
    assert _end_run(tmp_path).state is Integrity.COMPLETE
    assert _steps_read(tmp_path) == list(range(4000))
    end = json.loads((tmp_path / rank_folder(0) / END_FILE).read_text())
    assert end["reason"] == "complete"
    assert end["tables"]["spans"]["rows"] == 4000


def test_a_child_that_outlives_the_job_does_not_touch_the_trace(tmp_path: Path) -> None:
    script = """
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        child_work()
        (run / "child done").touch()
        os._exit(0)
    writer.close()
    """
    _run_script(_FORKS + script, tmp_path)
    files = {file: file.read_bytes() for file in (tmp_path / rank_folder(0)).iterdir()}
    _wait_for((tmp_path / "child done").exists)
    assert {file: file.read_bytes() for file in (tmp_path / rank_folder(0)).iterdir()} == files
    assert _steps_read_after(tmp_path) == list(range(2000))


def test_a_run_below_a_path_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    run = synthetic_trace(folder / "run", ranks=1, steps=7)
    assert Trace.open(run).steps.num_rows == 7
    assert verify(run).state is Integrity.COMPLETE
