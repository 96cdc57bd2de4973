"""The file in which `profkit ceilings` keeps what a machine can do."""

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
"""The libraries with which rates are measured: their versions are part of what was measured."""


def machine_key(environment: Mapping[str, Any]) -> str:
    """What tells one machine and what measures it from another, as far as a run's environment says it; no name of a host or a user.

    Another driver or another version of a library reaches other rates on the same device.
    """
    packages = environment.get("packages")
    versions = (
        {name: packages.get(name) for name in MEASURING} if isinstance(packages, Mapping) else {}
    )
    told = [
        *(
            environment.get(name) or None
            for name in ("cpu", "cpu_count", "gpu_models", "nvidia_driver")
        ),
        versions,
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def ceilings_file(environment: Mapping[str, Any]) -> Path:
    return cache_root() / "ceilings" / f"{machine_key(environment)}.json"


def load_ceilings(environment: Mapping[str, Any]) -> Ceilings | None:
    """What was measured on the machine of this environment, if that is here; a file that cannot be read is none."""
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
