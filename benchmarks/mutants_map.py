"""Plug-in of pytest that notes how long each test takes, for `mutants.py`."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

_spent_s: dict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # the controller is told of all
        return
    _spent_s[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    if _spent_s:
        Path(os.environ["MUTANTS_MAP"], "seconds.json").write_text(json.dumps(_spent_s), "utf-8")
