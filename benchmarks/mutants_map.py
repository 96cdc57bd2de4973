"""Plug-in of pytest that notes which functions each module of tests runs, for `mutants.py`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[1]
_seen: set[CodeType] = set()
_spent_s: dict[str, float] = defaultdict(float)
_codes: dict[str, set[CodeType]] = defaultdict(set)


def _note(frame: FrameType, event: str, arg: object) -> None:
    _seen.add(frame.f_code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace the calls of a test; lines are not traced."""
    test = item.path.relative_to(TOP).as_posix()
    _seen.clear()
    began = time.perf_counter()
    sys.settrace(_note)
    threading.settrace(_note)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        _spent_s[test] += time.perf_counter() - began
        _codes[test] |= _seen


def pytest_sessionfinish() -> None:
    found: dict[str, Any] = {}
    for test, codes in _codes.items():
        ran = set()
        for code in codes:
            path = Path(code.co_filename).resolve()
            if path.is_relative_to(TOP) and not path.is_relative_to(TOP / "tests"):
                ran.add(f"{path.relative_to(TOP).as_posix()}:{code.co_firstlineno}")
        files = {place.rpartition(":")[0] + ":" for place in ran}
        spent_s = round(_spent_s[test], 2)
        found[test] = {"seconds": spent_s, "ran": sorted(ran), "files": sorted(files)}
    part = Path(os.environ["MUTANTS_MAP"], f"{os.getpid()}.json")
    part.write_text(json.dumps(found), encoding="utf-8")
