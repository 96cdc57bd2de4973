"""The file in which `profkit ceilings` keeps the ceilings of a machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profkit.analysis.ceilings import Ceilings
from profkit.cache import cache_root
from profkit.environment import read_environment
from profkit.errors import ProfkitError
from profkit.trace.jsonfile import read_json, replace_json

MEASURING = ("torch", "numpy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
"""The libraries that measure rates; ceilings belong to their versions as well."""


def machine_key(environment: Mapping[str, Any]) -> str:
    """Return a key for a machine and its libraries, without names of hosts or users.

    Another driver or another version of a library reaches other rates on the same device.
    """
    packages = environment.get("packages")
    versions = {}
    if isinstance(packages, Mapping):
        versions = {name: packages.get(name) for name in MEASURING}
    described: list[Any] = []
    for name in ("cpu", "cpu_count", "gpu_models", "nvidia_driver"):
        described.append(environment.get(name) or None)
    text = json.dumps([*described, versions])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ceilings_file(environment: Mapping[str, Any]) -> Path:
    return cache_root() / "ceilings" / f"{machine_key(environment)}.json"


def load_ceilings(environment: Mapping[str, Any]) -> Ceilings | None:
    """Return the ceilings of this environment's machine, if a readable file has them."""
    try:
        return Ceilings.from_json(read_json(ceilings_file(environment)))
    except (ProfkitError, OSError, ValueError, TypeError, KeyError):
        return None


def keep_ceilings(found: Ceilings) -> Path:
    path = ceilings_file(read_environment())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(path, dataclasses.asdict(found))
    except OSError as error:
        raise ProfkitError(
            f"{path}: {error.strerror}; set PROFKIT_CACHE to a folder that can be written"
        ) from error
    return path
