"""How hooks get into a process, and what the launcher says if they do not."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from profkit.attached import NOTES_FILE, RUN_VARIABLE
from profkit.instrument import guard
from profkit.run import job
from profkit.run.attach import arming, watcher
from profkit.run.witness import explain_nothing


def test_zlib_is_there_before_a_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paddle 2.6 exports the symbols of a zlib of its own; one that is loaded later crashes."""
    (tmp_path / "framework.py").write_text("import sys; found = 'zlib' in sys.modules")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "zlib")
    reported: list[str] = []
    watcher.watch({"framework": "its hooks"}, reported.append)
    framework = importlib.import_module("framework")
    monkeypatch.delitem(sys.modules, "framework")
    assert (framework.found, reported) == (True, ["its hooks"])


def test_hooks_that_fail_are_the_reason_for_no_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    framework = ModuleType("paddle")
    framework.__spec__ = ModuleSpec("paddle", None)
    monkeypatch.setitem(sys.modules, "paddle", framework)
    monkeypatch.setattr(job, "current_job", lambda: 1 / 0)
    monkeypatch.setattr(guard, "FAILURES", Counter())
    monkeypatch.setenv(RUN_VARIABLE, str(tmp_path))
    (tmp_path / NOTES_FILE).touch()
    arming._hook("paddle")
    assert "hooks of paddle failed" in caplog.text
    why = "profkit's hooks of paddle failed; a warning of the job says why"
    assert explain_nothing(tmp_path, ()) == [f"nothing was recorded: {why}"]
