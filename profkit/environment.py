"""Describe the machine of a run: everything that can change its speed, and no secret."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from profkit.command_words import KNOWN_TOKEN, LEFT_OUT, is_secret

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
_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?=\s*[=:])")
_NAMED_SECRET = re.compile(
    r"((?:(?:api|access|private)_?key|token(?!iz)|secret|passw|credential|auth|cookie)"
    r"[\w\-'\"\]]*\s*(?:==|[=:])\s*)"
    r"('[^']*'|\"[^\"]*\"|(?!(?:None|True|False|[\d.+-]+)\b)[^\s'\"=:,;)\]]+)",
    re.IGNORECASE,
)
"""A value behind a name that sounds secret: `token=abc`, `L['password'] == 'abc'`."""

_WORD = re.compile(r"[^\s'\"`]+")
_OPAQUE = re.compile(rf"{KNOWN_TOKEN.pattern}|{_MIXED_OPAQUE.pattern}")

_HOME = re.compile(r"(?:^|[:=, ])(?:/home/|/Users/|/root\b|~)")
"""A path of a user, whose name is nobody's business."""

_DEVICE_ID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

PACKAGES = (
    "torch",
    "torchvision",
    "paddlepaddle",
    "paddlepaddle-gpu",
    "nvidia-dali-cuda120",
    "nvidia-dali-cuda130",
    "cupy-cuda11x",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "numpy",
    "pillow",
    "pyarrow",
)


def read_environment() -> dict[str, Any]:
    """Return the machine, its versions and the allowed variables, for `run.json`."""
    cpu_count = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cpu_count = len(os.sched_getaffinity(0))
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "cpu": _cpu_model(),
        "cpu_count": cpu_count,
        "virtual": is_virtual(),
        "gpu_models": gpu_models(),
        "nvidia_driver": nvidia_driver(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": versions,
        "variables": allowed_variables(os.environ),
    }


def allowed_variables(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the variables that change a job's speed and look like settings, and no others."""
    allowed = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(_ALLOWED) or _SECRET.search(name) or is_secret(name):
            continue
        if not _PLAIN_VALUE.fullmatch(value) or _HOME.search(value):
            continue
        rest = _DEVICE_ID.sub("", value)
        secret_shapes = (_SECRET, KNOWN_TOKEN, _LONG_OPAQUE, _MIXED_OPAQUE)
        names_secret = any(map(is_secret, _ASSIGNED.findall(rest)))
        if not names_secret and not any(shape.search(rest) for shape in secret_shapes):
            allowed[name] = value
    return allowed


def hide_secrets(text: str) -> str:
    """Return a text of another library without values that look like a secret.

    Guards and reasons of compilers quote constants of the job.
    """
    hidden = _NAMED_SECRET.sub(rf"\1{LEFT_OUT}", text)
    return _WORD.sub(lambda word: LEFT_OUT if _OPAQUE.search(word[0]) else word[0], hidden)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def is_virtual(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Return true on a virtual machine, whose host may do other work; `None` if unknown.

    Processors of x86 tell their guests. Others do not.
    """
    found = _find(cpuinfo, r"(?m)^flags\s*:(.*)$")
    return "hypervisor" in found.split() if found else None


def gpu_models(proc: Path = Path("/proc/driver/nvidia")) -> list[str]:
    """Return the models of the NVIDIA GPUs in bus order; none without a driver."""
    models = []
    for gpu in sorted(proc.glob("gpus/*/information")):
        models.append(_find(gpu, r"Model:\s*(.*\S)"))
    return [model for model in models if model]


def nvidia_driver(proc: Path = Path("/proc/driver/nvidia")) -> str:
    """Return the version of the loaded NVIDIA driver, or an empty string."""
    return _find(proc / "version", r"NVRM version:.*?\s(\d+\.[\d.]+)\s")


def _find(path: Path, pattern: str) -> str:
    """Return the first group of a pattern in a file, or an empty string."""
    try:
        found = re.search(pattern, path.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
