"""Damage of a run's status files, which `profkit why` names also after an alarm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import UnreadableError
from profkit.hangs.account import read_account
from profkit.hangs.status import FOLDER, Status

RECORDED = Path("traces/recorded-h100-hang")
ALARMS = "vm.alarms.jsonl"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A hung run, whose status file has a checksum."""
    run = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    Status.read(file_of(run)).write(run / FOLDER)
    return run


def file_of(run: Path) -> Path:
    return next((run / FOLDER).glob("*.rank.json"))


def damaged(content: bytes) -> Iterator[bytes]:
    for size in range(0, len(content) - 2, 29):
        yield content[:size]
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


def test_a_whole_run_has_no_damage(run: Path) -> None:
    assert read_account(run).damaged == ()
    assert read_account(RECORDED).damaged == (), "without a checksum"


def test_each_cut_and_each_changed_value_is_named(run: Path) -> None:
    path = file_of(run)
    content, whole = path.read_bytes(), Status.read(path)
    named = 0
    for changed in damaged(content):
        path.write_bytes(changed)
        account = read_account(run)
        if account.damaged:
            named += 1
            assert any(f"{path}: " in line for line in account.lines())
        else:  # a space between two values, or the name of the checksum
            assert Status.read(path) == whole
    assert named > 60


def test_a_missing_file_of_a_recorded_rank_is_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of(run).unlink()
    main(["why", str(run)])
    assert "rank 0: no status file" in capsys.readouterr().out


def test_lines_of_alarms_that_cannot_be_read_are_counted(run: Path) -> None:
    with (run / FOLDER / ALARMS).open("a") as file:
        file.write('{"event": "seen"\n')
    assert read_account(run).damaged == (f"{run / FOLDER / ALARMS}: 1 line cannot be read",)


def test_a_change_that_leaves_valid_json_is_damage(run: Path) -> None:
    path = file_of(run)
    path.write_text(path.read_text().replace('"rank": 0', '"rank": 1'))
    with pytest.raises(UnreadableError, match="its checksum does not fit; the file is damaged"):
        Status.read(path)
