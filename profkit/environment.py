"""What a run records of its machine: what can change its speed, and nothing that is a secret."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_ALLOWED = (
    "BLIS_",
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "DALI_",
    "FLAGS_",
    "GLOO_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32",
    "OMP_",
    "OPENBLAS_",
    "PADDLE_",
    "PYTORCH_",
    "TORCH_",
)
_SECRET = re.compile(r"key|token(?!iz)|secret|passw|credential|auth|cookie|session", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r"[\w .,:;=+/%*@()\[\]-]{0,200}")
_LONG_OPAQUE = re.compile(r"[A-Za-z0-9+/_-]{32,}")
_MIXED_OPAQUE = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Z0-9]*[a-z])(?=[a-z0-9]*[A-Z])(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}"
)
_KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:gh[a-z]|github_pat|glpat|hf|npm|pypi|sk|xox[a-z])[_-]\w|A[KS]IA[A-Z0-9]{12}|AIza\w|eyJ\w{8})|://[^/\s]*@"
)
"""What well-known services' tokens begin with, and a password in an address."""

_DEVICE_ID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

PACKAGES = (
    *(
        "torch",
        "torchvision",
        "paddlepaddle",
        "paddlepaddle-gpu",
        "nvidia-dali-cuda120",
        "nvidia-dali-cuda130",
    ),
    *("cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "numpy", "pillow", "pyarrow"),
)


def read_environment() -> dict[str, Any]:
    """The machine, the versions and the allowed environment variables, as `run.json` holds them."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "gpu_models": gpu_models(),
        "nvidia_driver": nvidia_driver(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": _versions(),
        "variables": allowed_variables(os.environ),
    }


def allowed_variables(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """The variables that change a job's speed and look like settings; all others are left out."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_ALLOWED) and _is_setting(name, value)
    }


def plain_words(words: Sequence[str]) -> list[str]:
    """A command's words; what looks like a secret, or follows a flag that names one, is left out."""
    shown = []
    hide = False
    for word in words:
        secret = (
            _KNOWN_TOKEN.search(word)
            or (_LONG_OPAQUE.search(word) and "/" not in word)
            or ("=" in word and _SECRET.search(word))
        )
        shown.append("(left out)" if hide or secret else word)
        hide = word.startswith("-") and "=" not in word and bool(_SECRET.search(word))
    return shown


def _is_setting(name: str, value: str) -> bool:
    if _SECRET.search(name) or not _PLAIN_VALUE.fullmatch(value):
        return False
    value = _DEVICE_ID.sub("", value)
    return not any(
        shape.search(value) for shape in (_SECRET, _KNOWN_TOKEN, _LONG_OPAQUE, _MIXED_OPAQUE)
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def gpu_models(proc: Path = Path("/proc/driver/nvidia")) -> list[str]:
    """The models of the machine's NVIDIA GPUs, in the order of their places on the bus; none without a driver."""
    return [
        model
        for gpu in sorted(proc.glob("gpus/*/information"))
        if (model := _told(gpu, r"Model:\s*(.*\S)"))
    ]


def nvidia_driver(proc: Path = Path("/proc/driver/nvidia")) -> str:
    """The version of the NVIDIA driver that is loaded; nothing without one."""
    return _told(proc / "version", r"NVRM version:.*?\s(\d+\.[\d.]+)\s")


def _told(path: Path, pattern: str) -> str:
    """What a pattern finds in a file; nothing where there is no such file."""
    try:
        found = re.search(pattern, path.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
