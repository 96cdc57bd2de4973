"""A run to read, and the command line as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from profkit.testing import synthetic_trace

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of two ranks and 60 steps."""
    return synthetic_trace(tmp_path_factory.mktemp("runs") / "two-ranks", ranks=2, steps=60)


@pytest.fixture
def profkit(tmp_path: Path) -> Command:
    """Calls the command line in an empty folder, without the tester's own configuration."""

    def call(
        *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PROFKIT_") or name == "PROFKIT_CACHE"
        }
        clean |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), **(env or {})}
        command = [sys.executable, "-m", "profkit", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, env=clean, cwd=cwd or tmp_path, check=False
        )

    return call
