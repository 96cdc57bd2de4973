"""The modules in C, which are optional: those that this Python lacks, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

MODULES = (
    "profkit.instrument._calls",
    "profkit.instrument.tracking._notes",
    "profkit.collectors._garbage",
    "profkit.eye._frames",
    "profkit.run.lookout._crash",
    "profkit.importers.reading._scan",
)

COST = (
    "without them, recording adds more to each step, a crash has no line, and traces are read more "
    "slowly"
)
HELP = "install a wheel of profkit, or a C compiler, then profkit again"


def missing_modules(modules: Sequence[str] = MODULES) -> list[str]:
    """Return the modules that were not compiled for this Python."""
    return [name for name in modules if find_spec(name) is None]
