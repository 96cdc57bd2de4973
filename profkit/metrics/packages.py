"""The optional packages of sinks.

A folder without code is a package for Python, and clients leave folders of their own name where a
job runs. Such a package has no origin.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from profkit.errors import ProfkitError


def import_package(module: str, what: str, install: str) -> Any:
    """Import a module of an optional package, or name what installs it."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        raise _missing(what, install) from None
    if found.__spec__ is not None and found.__spec__.origin is None:
        raise _missing(what, install)
    return found


def need_package(module: str, what: str, install: str) -> None:
    """Raise an error if a package is missing, without an import.

    Some clients change this process's environment, which the job inherits: they are imported when
    the job has started.
    """
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise _missing(what, install)


def _missing(what: str, install: str) -> ProfkitError:
    return ProfkitError(f"{what} needs a package that is not installed: pip install {install}")
