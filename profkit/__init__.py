"""Show where training throughput goes.

Importing this package costs nothing: its names are loaded when they are first used.
"""

from __future__ import annotations

from profkit.version import __version__

TYPE_CHECKING = False  # importing typing would cost every process of a recorded job 3 ms
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from profkit.errors import ExitCode, ProfkitError
    from profkit.run.loop import loader, phase, step
    from profkit.trace import Trace

    def report(run: str | Path) -> Any:
        """Return the report of a run, as a notebook and a prompt show it."""

    def explain(base: str | Path, target: str | Path) -> Any:
        """Return the comparison of two runs, as a notebook and a prompt show it."""


__all__ = [
    "ExitCode",
    "ProfkitError",
    "Trace",
    "__version__",
    "explain",
    "loader",
    "phase",
    "report",
    "step",
]

_HOMES = {
    "ExitCode": "profkit.errors",
    "ProfkitError": "profkit.errors",
    "Trace": "profkit.trace",
    "loader": "profkit.run.loop",
    "phase": "profkit.run.loop",
    "step": "profkit.run.loop",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in {"explain", "report"}:  # packages that are functions as well
        return importlib.import_module(f"profkit.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'profkit' has no attribute '{name}'")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
