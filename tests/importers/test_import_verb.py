"""The verb `import`: a file that cannot be read stops no other run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from tests.importers.conftest import two_steps, write_trace
from tests.importers.logs.samples import SAMPLES

LOG = SAMPLES["mmcv"].data


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A good log, one with a single usable line, and a good one."""
    folder = tmp_path / "logs"
    folder.mkdir()
    lines = LOG.splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if b"Iter [" in line)
    for name, data in (("a", LOG), ("b", b"".join(lines[: first + 1])), ("c", LOG)):
        (folder / f"{name}.log").write_bytes(data)
    return folder


def bring_in(folder: Path, *more: str) -> int:
    return main(["import", str(folder), "-o", str(folder.parent / "traces"), *more])


def test_a_bad_log_stops_no_other(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bring_in(logs, "--json") == ExitCode.UNREADABLE
    shown = capsys.readouterr()
    assert [Path(made["run"]).name for made in json.loads(shown.out)] == ["a", "c"]
    (line,) = shown.err.splitlines()
    assert line.startswith(f"profkit: {logs / 'b.log'}: has 1 line about training")


def test_a_damaged_file_of_a_folder_stops_no_other(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (logs / "b.log").write_bytes(b"\x1f\x8bnothing like gzip")
    assert bring_in(logs) == ExitCode.UNREADABLE
    shown = capsys.readouterr()
    assert shown.out.count("  next ") == 2
    (line,) = shown.err.splitlines()
    assert line.startswith(f"profkit: {logs / 'b.log'}: a damaged gzip file")


def test_traces_that_are_runs_of_their_own_stop_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    write_trace(folder / "a.json", two_steps())
    (folder / "b.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"')
    write_trace(folder / "c.json", two_steps())
    assert bring_in(folder) == ExitCode.UNREADABLE
    shown = capsys.readouterr()
    assert shown.out.count("  next ") == 2
    assert "b.json" in shown.err


def test_ranks_of_one_run_belong_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without one of its ranks would look as if it were whole."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    write_trace(folder / "rank0.json", two_steps())
    (folder / "rank1.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"')
    assert bring_in(folder) == ExitCode.UNREADABLE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "rank1.json" in shown.err


def test_a_full_disk_shows_the_runs_before_it(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder cannot be written any more after the first run."""
    from profkit.errors import ProfkitError
    from profkit.importers.base import Target

    original = Target.new_run

    def new_run(target: Target, importer: str, sources: list[Path], name: str = "") -> object:
        if sources[0].name == "c.log":
            raise ProfkitError("full")
        return original(target, importer, sources, name)

    monkeypatch.setattr(Target, "new_run", new_run)
    assert bring_in(logs) == ExitCode.UNFINISHED
    shown = capsys.readouterr()
    assert shown.out.count("  next ") == 1
    assert [line.rpartition(": ")[2] for line in shown.err.splitlines()][-1] == "full"


def test_a_trace_of_which_nothing_is_left_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": "nan", "dur": "x", "pid": 0, "tid": 7}
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event] * 50}))
    assert main(["import", str(path), "-o", str(tmp_path / "traces")]) == ExitCode.UNREADABLE
    assert "nothing in it can be imported: dropped 50 events" in capsys.readouterr().err
    assert list((tmp_path / "traces").iterdir()) == []
