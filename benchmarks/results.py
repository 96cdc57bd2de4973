"""Write what a benchmark found, with what is needed to repeat it, to docs/results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "docs/results"
PACKAGES = ("profkit", "pyarrow", "numpy", "torch", "paddlepaddle", "textual")


def write(suite: str, found: Mapping[str, Any] | Sequence[Any]) -> Path:
    """Write the figures of a suite, as an object or as rows, and return the file's path."""
    parts = found if isinstance(found, Mapping) else {"rows": found}
    path = RESULTS / f"{suite}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**origin(), **parts}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)
    return path


def as_rows(found: Mapping[str, Any]) -> str:
    """Return figures as JSON with a line for each row of a list, so that changes can be read."""
    parts = []
    for key, value in found.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            text = f"[\n{rows}\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def gpu() -> str | None:
    """Return the GPU of this machine with its driver and versions; nothing without one."""
    asked = "--query-gpu=name,memory.total,driver_version"
    try:
        command = ["nvidia-smi", asked, "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    if done.returncode or not done.stdout.strip():
        return None
    name, memory, driver = done.stdout.splitlines()[0].split(", ")
    import torch  # only where a GPU is

    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    versions = f"CUDA {torch.version.cuda}, torch {torch.__version__}, NCCL {nccl}"
    return f"{name} ({memory}), driver {driver}, {versions}"


def origin() -> dict[str, Any]:
    """Return date, commit, command, machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "command": " ".join(["python", os.path.relpath(sys.argv[0], TOP), *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores of {_processor()}",
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _commit() -> str:
    command = ["git", "-C", str(TOP), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
