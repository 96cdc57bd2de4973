"""Facts that identify the machine and code of a run. All are optional, and none blocks.

A file system or a driver that hangs must not delay a job. So a thread reads the facts one after
the other, and what is not known after a short time is left out. No fact holds a path of a user.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from profkit.command_words import LEFT_OUT, looks_random
from profkit.environment import nvidia_driver

LIMIT_S = 0.5
"""The start of a run waits at most this long for its facts."""

LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
}
CONTAINER_FILES = {"docker": ".dockerenv", "podman": "run/.containerenv"}
COMMIT = re.compile(r"[0-9a-f]{40,64}")
CPU_NS: list[int] = []
"""The processor time of each reading that has ended, which a job adds to its cost."""

VERSION = re.compile(r"\d[\d.]*")
LIBRARIES = {
    "torch": {
        "cuda": "version.cuda",
        "cudnn": "backends.cudnn.version",
        "nccl": "cuda.nccl.version",
    },
    "paddle": {"cuda": "version.cuda", "cudnn": "version.cudnn", "nccl": "version.nccl"},
}
"""The attributes or functions of a framework that name the versions of its libraries."""


def read_facts(command: Sequence[str] = (), *, in_job: bool = False) -> dict[str, Any]:
    """Return what is known of the machine and of the job's code, for `run.json`.

    In the job's own process (`in_job`) no other program is started.
    """
    scripts = [word for word in command if word.endswith(".py")]
    readers: dict[str, Callable[[], Any]] = {
        "distribution": lambda: platform.freedesktop_os_release().get("PRETTY_NAME"),
        "container": read_container,
        "shm_bytes": shared_memory_bytes,
        "limits": read_limits,
        "gpu_memory_bytes": gpu_memory_bytes,
        "revision": lambda: read_revision(Path(*scripts[:1]).absolute(), in_job=in_job),
    }
    return read_within(LIMIT_S, readers)


def read_within(limit_s: float, readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return what the readers find within this time, without those that raise."""
    found: dict[str, Any] = {}

    def read() -> None:
        for name, reader in readers.items():
            with contextlib.suppress(Exception):  # a fact that cannot be read is left out
                value = reader()
                if value:
                    found[name] = value
        CPU_NS.append(time.thread_time_ns())

    thread = threading.Thread(target=read, name="profkit-facts", daemon=True)
    thread.start()
    thread.join(limit_s)
    return dict(found)


def read_container(
    environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> dict[str, str]:
    """Return the kind of the container around this process, and its image if that is known."""
    found = {}
    for kind, file in CONTAINER_FILES.items():
        if (root / file).exists():
            found["kind"] = kind
    image = environ.get("APPTAINER_NAME") or environ.get("SINGULARITY_NAME") or ""
    if image:
        found["kind"] = "apptainer"
    if "kind" not in found:
        groups = re.search(r"docker|kubepods|containerd|crio|lxc", _read(root / "proc/1/cgroup"))
        if groups:
            found["kind"] = groups[0]
    stated = re.search(r'^image="(.+)"$', _read(root / "run/.containerenv"), re.MULTILINE)
    if stated:
        image = stated[1].partition("@sha256:")[0]
    product = environ.get("NVIDIA_PRODUCT_NAME", "")
    if product:
        version = environ.get(f"NVIDIA_{product.upper()}_VERSION", "")
        image = f"NVIDIA {product} {version}".strip()
        if environ.get("NVIDIA_BUILD_ID"):
            image += f" (build {environ['NVIDIA_BUILD_ID']})"
    if image:
        found["image"] = LEFT_OUT if looks_random(image) else image
    return found


def _read(path: Path) -> str:
    """Return the text of a small file; an empty one if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def shared_memory_bytes(path: Path = Path("/dev/shm")) -> int:  # noqa: S108  # only its size
    """Return the size of the memory in which loader workers pass batches on; 0 without it."""
    try:
        system = os.statvfs(path)
    except OSError:
        return 0
    return system.f_blocks * system.f_frsize


def read_limits() -> dict[str, int | str]:
    """Return the soft limits of this process that jobs run into."""
    found: dict[str, int | str] = {}
    for name, number in LIMITS.items():
        limit, _ = resource.getrlimit(number)
        found[name] = "unlimited" if limit == resource.RLIM_INFINITY else limit
    return found


def gpu_memory_bytes() -> list[int]:
    """Return the memory of each NVIDIA GPU in bus order; none without a driver."""
    if not nvidia_driver():
        return []
    import pynvml

    pynvml.nvmlInit()
    sizes = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        sizes.append(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))
    return sizes


def read_revision(place: Path, *, in_job: bool = False) -> dict[str, Any]:
    """Return the commit of the git work tree around a file or folder, and if it has changes.

    The commit is read from git's files. Only git itself knows of changes, and it looks at every
    tracked file, so it has a time limit of its own.
    """
    for tree in (place, *place.parents):
        if (tree / ".git").exists():
            break
    else:
        return {}
    commit = read_commit(tree / ".git")
    if not commit:
        return {}
    if in_job:
        return {"commit": commit}
    words = ["git", "-C", str(tree), "--no-optional-locks", "-c", "core.fsmonitor=false"]
    words += ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {"commit": commit}
    return {"commit": commit, "dirty": bool(done.stdout)}


def read_commit(git: Path) -> str:
    """Return the checked-out commit; empty if git's files do not say."""
    if git.is_file():  # a work tree of its own, or a submodule
        git = git.parent / _read(git).partition("gitdir: ")[2].strip()
    head = _read(git / "HEAD").strip()
    _, is_branch, branch = head.partition("ref: ")
    if is_branch:
        shared = git / (_read(git / "commondir").strip() or ".")
        head = _read(shared / branch).strip()
        line = rf"^(\w+) {re.escape(branch)}$"
        packed = re.search(line, _read(shared / "packed-refs"), re.MULTILINE)
        if not head and packed:
            head = packed[1]
    return head if COMMIT.fullmatch(head) else ""


def read_libraries(framework: str, device: str) -> dict[str, str]:
    """Return the versions of CUDA, cuDNN and NCCL that the loaded framework uses on a GPU."""
    found: dict[str, str] = {}
    loaded = sys.modules.get(framework)
    if loaded is None or device == "cpu":
        return found
    for name, path in LIBRARIES.get(framework, {}).items():
        with contextlib.suppress(Exception):  # each framework raises its own without a library
            version = attrgetter(path)(loaded)
            if callable(version):
                version = version()
            if isinstance(version, tuple):
                version = ".".join(map(str, version))
            if VERSION.fullmatch(str(version)):
                found[name] = str(version)
    return found
