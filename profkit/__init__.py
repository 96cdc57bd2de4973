"""Show where training throughput goes.

Importing this package costs nothing: its names are loaded when they are first used.
"""

from __future__ import annotations

from profkit.version import __version__

TYPE_CHECKING = False  # importing typing would cost every process of a recorded job 3 ms
if TYPE_CHECKING:
    from typing import Any

    from profkit.errors import ExitCode, ProfkitError
    from profkit.run.loop import loader, phase, step
    from profkit.trace import Trace

__all__ = ["ExitCode", "ProfkitError", "Trace", "__version__", "loader", "phase", "step"]

_HOMES = {
    "ExitCode": "profkit.errors",
    "ProfkitError": "profkit.errors",
    "Trace": "profkit.trace",
    "loader": "profkit.run.loop",
    "phase": "profkit.run.loop",
    "step": "profkit.run.loop",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'profkit' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
