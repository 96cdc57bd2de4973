"""What the kernel shows of a thread that waits for a file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.hangs.processes import Look, look_at, read_path


def look_while(waits: Callable[[], object], call: str) -> Look:
    """Look at a thread until it is in this call."""
    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    until = time.monotonic() + 30
    look = Look()
    while look.system_call != call or not look.reads:
        assert time.monotonic() < until, look
        time.sleep(0.01)
        look = look_at(os.getpid(), thread.native_id or 0)
    return look


@pytest.mark.parametrize("name", ["plain", "a name with ümlauts", "n" * 200])
def test_a_pipe_that_nobody_writes_to_is_named_by_its_path(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    look = look_while(pipe.read_bytes, "openat")
    assert look.reads == str(pipe)
    assert look.state == "S"
    os.close(os.open(pipe, os.O_WRONLY))


def test_a_relative_path_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    look = look_while(lambda: Path("pipe").read_bytes(), "openat")
    assert look.reads == str(tmp_path / "pipe")
    os.close(os.open("pipe", os.O_WRONLY))


@pytest.mark.parametrize("address", [0, 1, -1, 2**63 - 1, 2**64, 2**80])
def test_an_address_that_is_none_has_no_path(address: int) -> None:
    assert read_path(os.getpid(), address) == ""
