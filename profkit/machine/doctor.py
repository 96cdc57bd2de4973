"""Check what this machine can measure; what it cannot has a reason and often a remedy."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from profkit.machine import preflight, probes
from profkit.plugins import COLLECTORS
from profkit.run import compiled
from profkit.run.facts import shared_memory_bytes
from profkit.text import byte_size

WORKS, PARTLY, CANNOT = "works", "partly", "cannot"

_HOLDERS = ("nv-hostengine", "dcgm-exporter", "dynolog")
"""Programs that keep the GPU's performance counters for themselves."""

_COMM_CHARS = 15
"""Linux cuts the names of processes to this length."""

_CROWDED_PERCENT = 10
"""Above this share of the last minute, figures of speed are about other programs, too."""

_SMALL_SHARED_BYTES = 1 << 30
"""Some workers with batches of images fill less than this."""

_MOST_READINGS = 20
"""So often a stack may be torn before it counts as not readable."""

_FRAMEWORKS = {"torch": "PyTorch", "paddle": "Paddle"}

Found = Mapping[str, Any]
"""The answer of a probe."""


@dataclass(frozen=True)
class Finding:
    """One thing that can be measured, or not: why, and what would help."""

    name: str
    measures: str
    state: str
    why: str = ""
    help: str = ""


def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Return all findings, in the order in which they are shown."""
    probed = (*_FRAMEWORKS, "cupti", "cupy")
    with ThreadPoolExecutor(len(probed)) as pool:
        answers = dict(zip(probed, pool.map(probes.probe, probed), strict=True))
    frameworks = {name: answers[name] for name in _FRAMEWORKS}
    holders = find_programs(_HOLDERS)
    driver = preflight.read_driver()
    findings = [_framework(name, found, driver) for name, found in frameworks.items()]
    loaded, broken = COLLECTORS.load_all()
    findings += [collector_finding(name, collector) for name, collector in loaded.items()]
    for name, error in broken.items():
        findings.append(Finding(name, "", CANNOT, f"cannot be loaded: {error}"))
    return [
        *findings,
        kernels(frameworks, holders),
        cupti(answers["cupti"]),
        collectives(frameworks),
        counters(read_restriction(), holders),
        nvtx_ranges(),
        cupy(answers["cupy"]),
        dali(preflight.find_dali(), driver),
        bf16(lacks_it=preflight.lacks_bf16()),
        modules_in_c(compiled.missing_modules()),
        lines(),
        shared_memory(shared_memory_bytes()),
        pressure(Path("/proc/pressure/cpu")),
        switched_off(environ),
    ]


def _framework(name: str, found: Found, driver: preflight.Driver | None = None) -> Finding:
    title = _FRAMEWORKS[name]
    measures = "phases, steps and the gradient exchange of its jobs"
    if "No module named" in found.get("error", ""):
        return Finding(title, measures, CANNOT, "not installed", f"pip install 'profkit[{name}]'")
    if "error" in found:
        return Finding(title, measures, CANNOT, found["error"])
    unbuilt = not_built_for(found)
    if unbuilt:
        return Finding(title, measures, PARTLY, *unbuilt)
    title = f"{title} {found['version']}"
    if found["devices"]:
        devices = ", ".join(device for _, device in found["devices"])
        why = f"on {devices}; CUDA {found['cuda']}"
        for library, version in found.get("libraries", {}).items():
            if version:
                why += f", {library} {version}"
        return Finding(title, measures, WORKS, why)
    build = preflight.Build(name, found["version"], found["cuda"] or "")
    problem = preflight.find_problem(build, driver)
    if problem is not None:
        return Finding(title, measures, PARTLY, problem.why, problem.help)
    if found["cuda"]:
        why = f"built for CUDA {found['cuda']}, and sees no GPU"
        helps = "a driver new enough for that CUDA, and --gpus all for a container"
    else:
        why = "its build has no CUDA"
        helps = "a build of torch with CUDA, from https://pytorch.org"
        if name == "paddle":
            helps = "pip install 'profkit[paddle-gpu]'"
    return Finding(title, measures, WORKS, f"on the CPU: {why}", helps)


def not_built_for(found: Found) -> tuple[str, str] | None:
    """Return why a build has no kernels for a GPU that it sees, and what would help.

    CUDA 13 has dropped Volta, and so did torch 2.11.
    """
    built = []
    for word in found.get("built", ()):
        arch = re.sub(r"\D", "", word)
        if arch:
            built.append(int(arch))
    built.sort()
    for capability, device in found["devices"]:
        if not built or not capability:
            continue
        # Kernels run on devices of the same generation that are as new or newer.
        generation = int(capability) // 10
        if any(arch // 10 == generation and arch <= int(capability) for arch in built):
            continue
        kernels_for = f"sm_{built[0]}"
        if int(capability) >= built[0]:
            kernels_for += f" to sm_{built[-1]}"
        helps = "another build of torch, older or newer than this one"
        if capability == "70":
            helps = "torch 2.10 is the last with sm_70: pip install 'profkit[volta]'"
        why = f"{device} has sm_{capability}, and this build's kernels are for {kernels_for}"
        return why, helps
    return None


def collector_finding(name: str, collector: Any) -> Finding:
    """Return what one collector reports of itself; an exception is its own fault."""
    documentation = sys.modules[type(collector).__module__].__doc__ or ""
    measures = documentation.strip().partition("\n")[0].rstrip(".")
    try:
        why, _, helps = collector.why_not().partition("; ")
        if why:
            return Finding(name, measures, CANNOT, why, helps)
        limits = "; ".join(getattr(collector, "limits", list)())
    except Exception as error:  # noqa: BLE001  # a plug-in may fail in any way
        return Finding(name, measures, CANNOT, f"{type(error).__name__}: {error}")
    return Finding(name, measures, PARTLY if limits else WORKS, limits)


def kernels(frameworks: Mapping[str, Found], holders: Sequence[str]) -> Finding:
    finding = functools.partial(Finding, "kernels", "kernels in windows of steps (--kernels)")
    able = [name for name, found in frameworks.items() if "error" not in found]
    if not able:
        why = "there is no framework whose profiler captures them"
        return finding(CANNOT, why, "pip install 'profkit[torch]'")
    if not any(frameworks[name]["devices"] for name in able):
        return finding(PARTLY, f"no GPU: operators of {' and '.join(able)} replace kernels")
    if holders:
        why = f"{', '.join(holders)} runs here and may hold CUPTI"
        return finding(PARTLY, why, "pause it: dcgmi profile --pause, and --resume afterwards")
    return finding(WORKS, f"through the profilers of {' and '.join(able)}")


def cupti(found: Found) -> Finding:
    """Return if CUPTI works: it is refused to the process of a probe as to a job."""
    from profkit.instrument.windows.cupti import explain_refusal

    measures = (
        "kernels in windows of steps, without the framework's profiler (--kernels-from cupti)"
    )
    if "error" in found:
        why, _, helps = explain_refusal(found["error"]).partition("; ")
        return Finding("CUPTI", measures, CANNOT, why, helps)
    return Finding(f"CUPTI {found['version']}", measures, WORKS)


def collectives(frameworks: Mapping[str, Found]) -> Finding:
    measures = "gradient buckets and collectives with their bandwidth"
    finding = functools.partial(Finding, "collectives", measures)
    able = [found for found in frameworks.values() if "error" not in found]
    if not able:
        return finding(CANNOT, "there is no framework", "pip install 'profkit[torch]'")
    backends = "gloo"
    if any(found.get("nccl") and found["devices"] for found in able):
        backends = "nccl and gloo"
    why = f"over {backends}; 'profkit ceilings --links' measures what these links can do"
    if frameworks.get("torch", {}).get("group_hooks") is False:
        missing = "collectives that C++ starts are not seen"
        return finding(PARTLY, f"{missing}; the others {why}", "torch 2.15 or later")
    return finding(WORKS, why)


def read_restriction(path: Path = Path("/proc/driver/nvidia/params")) -> bool | None:
    """Return true if only administrators may read performance counters; `None` if no driver."""
    try:
        found = re.search(r"RmProfilingAdminOnly:\s*(\d)", path.read_text())
    except OSError:
        return None
    return found is not None and found[1] == "1"


def counters(
    restricted: bool | None, holders: Sequence[str], *, is_root: bool | None = None
) -> Finding:
    """Report on performance counters, which ncu needs, but not the times of kernels."""
    measures = "metrics of a kernel that ncu reads; profkit itself needs none"
    finding = functools.partial(Finding, "hardware counters", measures)
    if is_root is None:
        is_root = os.geteuid() == 0
    if restricted is None:
        helps = "install the driver, or start the container with --gpus all"
        return finding(CANNOT, "no NVIDIA driver is loaded", helps)
    if holders:
        why = f"{', '.join(holders)} holds the counters' lock"
        return finding(CANNOT, why, "dcgmi profile --pause, or stop dcgm-exporter")
    if restricted and not is_root:
        helps = "NVreg_RestrictProfilingToAdminUsers=0, or a container with --cap-add SYS_ADMIN"
        return finding(CANNOT, "the driver lets only administrators read them", helps)
    return finding(WORKS)


def find_programs(names: Sequence[str], proc: Path = Path("/proc")) -> list[str]:
    """Return which of these programs run here, as far as this process can see them."""
    running = set()
    for path in proc.glob("[0-9]*/comm"):
        try:
            running.add(path.read_text().strip())
        except OSError:
            continue
    return [name for name in names if name[:_COMM_CHARS] in running]


def nvtx_ranges() -> Finding:
    measures = "phases in an nsys or ncu session"
    try:
        return Finding(f"nvtx ranges {metadata.version('nvtx')}", measures, WORKS)
    except metadata.PackageNotFoundError:
        return Finding("nvtx ranges", measures, CANNOT, "not installed", "pip install nvtx")


def cupy(found: Found) -> Finding:
    measures = "ceilings without a framework"
    if "No module named" in found.get("error", ""):
        helps = "pip install 'profkit[cuda12]', or cuda11, or cuda13"
        return Finding("CuPy", measures, CANNOT, "not installed", helps)
    if "error" in found:
        helps = "install the libraries of its CUDA; without them, torch measures the ceilings"
        return Finding("CuPy", measures, CANNOT, found["error"], helps)
    return Finding(f"CuPy {found['version']}", measures, WORKS)


def dali(package: str, driver: preflight.Driver | None) -> Finding:
    if not package:
        return Finding("DALI", "--dali", CANNOT, "not installed", "pip install 'profkit[dali]'")
    name = f"DALI {metadata.version(package)}"
    problem = preflight.find_dali_problem(package, driver)
    if problem is not None:
        return Finding(name, "--dali", CANNOT, problem.why, problem.help)
    return Finding(name, "--dali", WORKS)


def bf16(*, lacks_it: bool) -> Finding:
    finding = functools.partial(Finding, "bf16", "mixed precision on this processor")
    if lacks_it:
        return finding(
            PARTLY, "emulated: this processor has no instructions for it", "fp32, or a GPU"
        )
    return finding(WORKS)


def modules_in_c(missing: Sequence[str]) -> Finding:
    measures = "cheap recording, lines of crashes, fast reading of traces"
    finding = functools.partial(Finding, "modules in C", measures)
    if not missing:
        return finding(WORKS)
    names = ", ".join(name.rpartition(".")[2] for name in missing)
    return finding(PARTLY, f"{names} are missing: {compiled.COST}", compiled.HELP)


_WAITS = "import sys, threading; print(threading.get_ident(), flush=True); sys.stdin.read()"


def lines() -> Finding:
    """Return if another process can read where a Python program is: this tries one of its own."""
    from profkit.eye.layout import UnknownPythonError
    from profkit.eye.memory import ForbiddenError
    from profkit.eye.reader import StackReader

    measures = "lines of code, states of threads, and hangs, from outside of the job"
    instead = "a thread of the job looks twice per second instead"
    finding = functools.partial(Finding, "lines", measures)
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        try:
            number = int(program.stdout.readline() if program.stdout else 0)
            reader = StackReader(program.pid, sys.version_info[:2])
            with contextlib.closing(reader):
                for _ in range(_MOST_READINGS):
                    if reader.read(reader.find(number)):
                        return finding(WORKS)
            return finding(PARTLY, f"no stack could be read: {instead}")
        except ForbiddenError as error:
            helps = "kernel.yama.ptrace_scope of 1 or 0; in a container, --cap-add SYS_PTRACE"
            return finding(PARTLY, f"the system forbids it ({error}): {instead}", helps)
        except UnknownPythonError as error:
            return finding(PARTLY, f"{error}: {instead}", "CPython 3.10 to 3.13")
        finally:
            program.kill()


def shared_memory(size: int) -> Finding:
    """Report on `/dev/shm`: a container has 64 MB by default, and loader workers need more."""
    measures = "batches from loader workers"
    finding = functools.partial(Finding, "shared memory", measures)
    if not size:
        return finding(CANNOT, "there is no /dev/shm", "mount a tmpfs there, or use --workers 0")
    if size < _SMALL_SHARED_BYTES:
        why = f"{byte_size(size)} in /dev/shm: workers may end with a bus error"
        return finding(PARTLY, why, "start the container with --shm-size 8g or --ipc=host")
    return finding(WORKS, f"{byte_size(size)} in /dev/shm")


def pressure(path: Path) -> Finding:
    measures = "speed that other processes do not disturb"
    finding = functools.partial(Finding, "quiet machine", measures)
    try:
        found = re.search(r"avg60=([\d.]+)", path.read_text())
    except OSError:
        helps = "look at the run queue of the host collector"
        return finding(PARTLY, f"this kernel does not report it ({path})", helps)
    share = float(found[1]) if found else 0.0
    if share > _CROWDED_PERCENT:
        why = f"processes waited for a processor in {share:.0f} % of the last minute"
        return finding(PARTLY, why, "figures of speed need a machine of their own")
    return finding(WORKS)


def switched_off(environ: Mapping[str, str]) -> Finding:
    from profkit.attached import disabled

    finding = functools.partial(Finding, "recording", "any recording by profkit")
    if disabled():
        why = f"PROFKIT_DISABLE={environ.get('PROFKIT_DISABLE', '')} switches profkit off"
        return finding(CANNOT, why, "unset PROFKIT_DISABLE")
    return finding(WORKS)
