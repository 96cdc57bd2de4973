"""Write and read a run: a folder with one Arrow stream per table and rank.

Names are loaded when they are first used: a job that only writes must not load the readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profkit.trace.integrity import Verification, verify
    from profkit.trace.manifest import RankManifest, RunManifest
    from profkit.trace.reader import Trace
    from profkit.trace.writer import RankWriter

__all__ = ["RankManifest", "RankWriter", "RunManifest", "Trace", "Verification", "verify"]

_HOMES = {
    "RankManifest": "manifest",
    "RankWriter": "writer",
    "RunManifest": "manifest",
    "Trace": "reader",
    "Verification": "integrity",
    "verify": "integrity",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'profkit.trace' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(f"profkit.trace.{home}"), name)
    globals()[name] = value
    return value
