"""Find what stops work before it starts, from the driver and the installed packages alone.

No framework is imported, so the answer takes milliseconds.
"""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from profkit.collectors._nvml_door import Door

OLDEST = 75
"""The compute capability, times ten, of the oldest devices of CUDA 13 and of torch 2.11."""

LAST_CUDA, LAST_TORCH = 12, (2, 10)
"""The last with kernels for devices before those."""

VOLTA = "torch 2.10 is the last for it: pip install 'profkit[volta]'"

DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")

_VERSIONS = {"torch": "version.py", "paddle": "version/__init__.py"}
_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""What Linux calls the instructions of x86 and ARM."""


class Driver(NamedTuple):
    """The newest CUDA that the driver knows, and the compute capability and name of each GPU."""

    cuda: tuple[int, int]
    gpus: tuple[tuple[int, str], ...]


class Build(NamedTuple):
    """A framework as it was built: without CUDA, its version of that is empty."""

    framework: str
    version: str
    cuda: str


class Problem(NamedTuple):
    """What does not work, what would help, and whether a framework sees the GPU all the same."""

    why: str
    help: str
    is_seen: bool = False

    def __str__(self) -> str:
        return f"{self.why}; {self.help}"


def read_driver(door: Door | None = None) -> Driver | None:
    """Return what the driver says of the GPUs of this process; `None` without a driver."""
    door = door or Door()
    try:
        known = int(door.ask("nvmlSystemGetCudaDriverVersion") or 0)
        gpus = []
        for gpu in door.gpus():
            major, minor = door.ask("nvmlDeviceGetCudaComputeCapability", gpu.handle) or (0, 0)
            gpus.append((10 * major + minor, str(door.ask("nvmlDeviceGetName", gpu.handle))))
    except Exception:  # noqa: BLE001  # what the driver does not say, the framework will
        return None
    return Driver((known // 1000, known % 1000 // 10), tuple(gpus))


def read_build(framework: str) -> Build | None:
    """Return the installed framework, from the file that says its version."""
    spec = importlib.util.find_spec(framework)
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(spec.submodule_search_locations[0]) / _VERSIONS[framework]).read_text()
    except OSError:
        return None
    version = re.search(r"^(?:__version__|full_version)\s*= '([^']*)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:_version)?\b.*= '(\d[\d.]*)'", text, re.MULTILINE)
    return Build(framework, version[1] if version else "", cuda[1] if cuda else "")


def find_problem(build: Build | None, driver: Driver | None) -> Problem | None:
    """Return why a framework cannot use a GPU that is there."""
    if build is None or driver is None or not driver.gpus:
        return None
    name = f"{build.framework} {build.version}"
    if not build.cuda:
        helps = f"install a build of {build.framework} for CUDA"
        return Problem(f"{name} was built without CUDA and cannot use {driver.gpus[0][1]}", helps)
    major = int(build.cuda.partition(".")[0])
    if 0 < driver.cuda[0] < major:
        known = ".".join(map(str, driver.cuda))
        return Problem(
            f"the driver is too old for {name}: it knows CUDA {known}, and this build is for CUDA "
            f"{build.cuda}",
            f"update the driver, or install a build for CUDA {driver.cuda[0]}",
        )
    release = tuple(map(int, re.findall(r"\d+", build.version)[:2]))
    has_dropped = major > LAST_CUDA or (build.framework == "torch" and release > LAST_TORCH)
    for capability, device in driver.gpus:
        if has_dropped and 0 < capability < OLDEST:
            why = f"{name} for CUDA {build.cuda} has no kernels for {device} (sm_{capability})"
            helps = VOLTA if build.framework == "torch" else "install a build for CUDA 12"
            return Problem(why, helps, is_seen=True)
    return None


def find_dali() -> str:
    """Return the name of the installed package of DALI, or an empty one."""
    for package in DALI:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return package
    return ""


def find_dali_problem(package: str, driver: Driver | None) -> Problem | None:
    """Return why the installed DALI cannot use a GPU that is there."""
    if not package or driver is None:
        return None
    major = int(package[-3:-1])
    for capability, device in driver.gpus:
        if major > LAST_CUDA and 0 < capability < OLDEST:
            why = f"{package} has nothing for {device} (sm_{capability})"
            return Problem(why, "install nvidia-dali-cuda120")
        if 0 < driver.cuda[0] < major:
            why = f"the driver is too old for {package}: it knows CUDA {driver.cuda[0]}"
            return Problem(why, f"update the driver, or install nvidia-dali-cuda{driver.cuda[0]}0")
    return None


def lacks_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return true if this processor has no instructions for bf16; false if nothing says so."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return found is not None and _BF16.isdisjoint(found[1].split())
