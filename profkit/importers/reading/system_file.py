"""Reads the description of a system that MLPerf results keep beside their logs.

It is `systems/NAME.json`, where NAME is the name of a folder above the log.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from profkit.importers.base import clean_name

LARGEST_FILE = 1 << 20
_FOLDERS_UP = 5
_NAMES = {
    "accelerator_model_name": "gpu_models",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
    "accelerator_memory_capacity": "gpu_memory",
    "accelerator_interconnect": "gpu_link",
    "host_networking": "network",
    "host_processor_model_name": "cpu",
    "host_memory_capacity": "memory",
    "framework": "framework_release",
    "operating_system": "system",
}
"""What a run's environment keeps, by its name in the file. Names of people are in none of it."""


def find_system(log: Path) -> dict[str, Any]:
    """Return the description of the system that a log is of; empty without one."""
    folders = log.absolute().parents[:_FOLDERS_UP]
    for folder, above in itertools.product(folders, folders):
        path = above / "systems" / f"{folder.name}.json"
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if path.is_file() and path.stat().st_size <= LARGEST_FILE:
                described = json.loads(path.read_bytes().decode(errors="replace"))
                if isinstance(described, dict):
                    return described
    return {}


def describe_system(system: dict[str, Any]) -> dict[str, Any]:
    """Return what a run's environment keeps of a description."""
    kept: dict[str, Any] = {}
    for name, own in _NAMES.items():
        if isinstance(system.get(name), str) and system[name].strip():
            kept[own] = clean_name(system[name].strip())
    if "gpu_models" in kept:
        kept["gpu_models"] = [kept["gpu_models"]]
    stack = system.get("other_software_stack")
    if isinstance(stack, dict):
        versions = {clean_name(str(name)): clean_name(str(each)) for name, each in stack.items()}
        kept["versions"] = versions
    return kept
