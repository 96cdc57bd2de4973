"""What can be measured on this machine and, where something cannot, why and what would help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from profkit.plugins import COLLECTORS

WORKS, PARTLY, CANNOT = "works", "partly", "cannot"

PROBE_TIMEOUT_S = 120
"""How long a framework may take to be imported and to tell what it sees."""

_HOLDERS = ("nv-hostengine", "dcgm-exporter", "dynolog")
"""Programs that hold the GPU's performance counters for themselves."""

_FRAMEWORKS = ("torch", "paddle")
_PROBES = {
    "torch": "import json, torch as t; c = t.cuda; n = c.device_count(); print(json.dumps({'version': t.__version__, 'cuda': t.version.cuda, 'built': c.get_arch_list(),"
    " 'devices': [['%d%d' % c.get_device_capability(i), c.get_device_name(i)] for i in range(n)], 'nccl': t.distributed.is_available() and t.distributed.is_nccl_available()}))",
    "paddle": "import json, paddle as p; d = p.device; b = d.is_compiled_with_cuda(); n = d.cuda.device_count() if b else 0; print(json.dumps({'version': p.__version__,"
    " 'cuda': p.version.cuda() if b else None, 'built': [], 'devices': [['', d.cuda.get_device_name(i)] for i in range(n)], 'nccl': b}))",
    "cupti": "import json; from importlib.metadata import version; from cupti import cupti as c; k = c.ActivityKind.CONCURRENT_KERNEL; c.activity_enable(k);"
    " c.activity_disable(k); print(json.dumps({'version': version('cupti-python')}))",
}
"""Run in a process of their own: what a framework does while it is imported is no business of ours."""


@dataclass(frozen=True)
class Finding:
    """One thing that can be measured, or not: why, and what would help."""

    name: str
    measures: str
    state: str
    why: str = ""
    help: str = ""


def examine(environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Everything, in the order in which it is shown."""
    frameworks = {name: _probe(name) for name in _FRAMEWORKS}
    return [
        *(_framework(name, found) for name, found in frameworks.items()),
        *_collectors(),
        kernels(frameworks, find_programs(_HOLDERS)),
        cupti(),
        collectives(frameworks),
        counters(read_restriction(), find_programs(_HOLDERS)),
        _package("nvtx ranges", "phases in an nsys or ncu session", "nvtx", "pip install nvtx"),
        _package(
            "CuPy",
            "ceilings without a framework",
            "cupy-cuda11x cupy-cuda12x cupy-cuda13x",
            "pip install 'profkit[cuda12]', or cuda11, or cuda13",
        ),
        _package(
            "DALI",
            "--dali",
            "nvidia-dali-cuda130 nvidia-dali-cuda120 nvidia-dali-cuda110",
            "pip install 'profkit[dali]'",
        ),
        scanner(),
        pressure(Path("/proc/pressure/cpu")),
        switched_off(environ),
    ]


def _probe(what: str) -> dict[str, Any]:
    """What a framework or CUPTI tells of itself; an `error` where it cannot."""
    import json

    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROBES[what]],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        found: dict[str, Any] = (
            json.loads(lines[-1])
            if done.returncode == 0 and lines
            else {"error": (done.stderr.strip().splitlines() or ["it ended"])[-1]}
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    return found


def _framework(name: str, found: Mapping[str, Any]) -> Finding:
    title, measures = (
        {"torch": "PyTorch", "paddle": "Paddle"}[name],
        "phases, steps and the gradient exchange of its jobs",
    )
    if "error" in found:
        missing = "No module named" in found["error"]
        return Finding(
            title,
            measures,
            CANNOT,
            "not installed" if missing else found["error"],
            f"pip install 'profkit[{name}]'" if missing else "",
        )
    unbuilt = not_built_for(found)
    if unbuilt:
        return Finding(title, measures, PARTLY, *unbuilt)
    if not found["devices"]:
        why, helps = _why_no_gpu(name, found["cuda"])
        return Finding(f"{title} {found['version']}", measures, WORKS, f"on the CPU: {why}", helps)
    devices = ", ".join(device for _, device in found["devices"])
    return Finding(f"{title} {found['version']}", measures, WORKS, f"on {devices}")


def _why_no_gpu(framework: str, cuda: str | None) -> tuple[str, str]:
    if cuda:
        return (
            f"built for CUDA {cuda}, and sees no GPU",
            "a driver new enough for that CUDA, and --gpus all for a container",
        )
    return (
        "its build has no CUDA",
        "pip install 'profkit[paddle-gpu]'"
        if framework == "paddle"
        else "a build of torch with CUDA, from https://pytorch.org",
    )


def not_built_for(found: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a build has no kernels for a GPU that it sees, and what would help: CUDA 13 has dropped Volta, and so did torch 2.11."""
    built = sorted(
        int(arch) for word in found.get("built", ()) if (arch := re.sub(r"\D", "", word))
    )
    for capability, device in found["devices"]:
        if not built or not capability or _runs(int(capability), built):
            continue
        older = int(capability) < built[0]
        helps = (
            "torch 2.10 is the last with sm_70: pip install 'profkit[v100]'"
            if capability == "70"
            else "another build of torch, older or newer than this one"
        )
        return (
            f"{device} has sm_{capability}, and this build's kernels are for sm_{built[0]}{'' if older else f' to sm_{built[-1]}'}",
            helps,
        )
    return None


def _runs(capability: int, built: Sequence[int]) -> bool:
    """Kernels run on devices of the same generation that are as new or newer."""
    return any(arch // 10 == capability // 10 and arch <= capability for arch in built)


def _collectors() -> Iterator[Finding]:
    loaded, broken = COLLECTORS.load_all()
    for name, collector in loaded.items():
        yield collector_finding(name, collector)
    for name, error in broken.items():
        yield Finding(name, "", CANNOT, f"cannot be loaded: {error}")


def collector_finding(name: str, collector: Any) -> Finding:
    """What one collector says of itself; whatever it does is its own fault."""
    measures = (
        (sys.modules[type(collector).__module__].__doc__ or "")
        .strip()
        .partition("\n")[0]
        .rstrip(".")
    )
    try:
        why, _, helps = collector.why_not().partition("; ")
        if why:
            return Finding(name, measures, CANNOT, why, helps)
        limits = "; ".join(getattr(collector, "limits", list)())
    except Exception as error:  # noqa: BLE001  # a collector is a plug-in: it may fail in any way
        return Finding(name, measures, CANNOT, f"{type(error).__name__}: {error}")
    return Finding(name, measures, PARTLY if limits else WORKS, limits)


def kernels(frameworks: Mapping[str, Mapping[str, Any]], holders: Sequence[str]) -> Finding:
    measures = "kernels in windows of steps (--kernels)"
    able = [name for name, found in frameworks.items() if "error" not in found]
    if not able:
        return Finding(
            "kernels",
            measures,
            CANNOT,
            "there is no framework whose profiler captures them",
            "pip install 'profkit[torch]'",
        )
    if not any(frameworks[name]["devices"] for name in able):
        return Finding(
            "kernels",
            measures,
            PARTLY,
            f"no GPU: operators of {' and '.join(able)} stand in for kernels",
            "",
        )
    if holders:
        return Finding(
            "kernels",
            measures,
            PARTLY,
            f"{', '.join(holders)} runs here and may hold CUPTI",
            "stop it meanwhile: dcgmi profile --pause, and --resume afterwards",
        )
    return Finding("kernels", measures, WORKS, f"through the profilers of {' and '.join(able)}")


def cupti() -> Finding:
    """Tried in a process of its own, as frameworks are: it is refused there as it would be in a job, by an old driver or under nsys."""
    from profkit.instrument.windows.cupti import explain_refusal

    measures = (
        "kernels in windows of steps, without the framework's profiler (--kernels-from cupti)"
    )
    found = _probe("cupti")
    if "error" in found:
        why, _, helps = explain_refusal(found["error"]).partition("; ")
        return Finding("CUPTI", measures, CANNOT, why, helps)
    return Finding(f"CUPTI {found['version']}", measures, WORKS)


def collectives(frameworks: Mapping[str, Mapping[str, Any]]) -> Finding:
    measures = "gradient buckets and collectives with their bandwidth"
    able = [name for name, found in frameworks.items() if "error" not in found]
    if not able:
        return Finding(
            "collectives", measures, CANNOT, "there is no framework", "pip install 'profkit[torch]'"
        )
    backends = (
        ["nccl", "gloo"]
        if any(
            found.get("nccl") and found["devices"]
            for found in frameworks.values()
            if "error" not in found
        )
        else ["gloo"]
    )
    return Finding(
        "collectives",
        measures,
        WORKS,
        f"over {' and '.join(backends)}; 'profkit ceilings --links' measures what these links can do",
    )


def read_restriction(path: Path = Path("/proc/driver/nvidia/params")) -> bool | None:
    """Whether the driver keeps its performance counters for administrators; `None` without a driver."""
    try:
        found = re.search(r"RmProfilingAdminOnly:\s*(\d)", path.read_text())
    except OSError:
        return None
    return found is not None and found[1] == "1"


def counters(
    restricted: bool | None, holders: Sequence[str], *, is_root: bool | None = None
) -> Finding:
    """Performance counters, which ncu needs; kernels' times do not."""
    name, measures = "hardware counters", "what ncu tells of a kernel; profkit itself needs none"
    if restricted is None:
        return Finding(
            name,
            measures,
            CANNOT,
            "no NVIDIA driver is loaded",
            "install the driver, or start the container with --gpus all",
        )
    if holders:
        return Finding(
            name,
            measures,
            CANNOT,
            f"{', '.join(holders)} holds the counters' lock",
            "dcgmi profile --pause, or stop dcgm-exporter meanwhile",
        )
    if restricted and not (os.geteuid() == 0 if is_root is None else is_root):
        return Finding(
            name,
            measures,
            CANNOT,
            "the driver keeps them for administrators",
            "NVreg_RestrictProfilingToAdminUsers=0, or a container with --cap-add SYS_ADMIN",
        )
    return Finding(name, measures, WORKS)


def find_programs(names: Sequence[str], proc: Path = Path("/proc")) -> list[str]:
    """Which of these programs run here, as far as they can be seen from in here."""
    running = set()
    for path in proc.glob("[0-9]*/comm"):
        try:
            running.add(path.read_text().strip())
        except OSError:
            continue
    return [name for name in names if name[:15] in running]


def _package(name: str, measures: str, packages: str, helps: str) -> Finding:
    for package in packages.split():
        try:
            return Finding(f"{name} {metadata.version(package)}", measures, WORKS)
        except metadata.PackageNotFoundError:
            continue
    return Finding(name, measures, CANNOT, "not installed", helps)


def scanner() -> Finding:
    from profkit.importers.reading.chrome import CompiledScanner

    measures = "imports and kernel windows in seconds"
    if CompiledScanner is not None:
        return Finding("compiled scanner", measures, WORKS)
    return Finding(
        "compiled scanner",
        measures,
        PARTLY,
        "not compiled: its twin in Python does the same, more slowly",
        "pip install profkit where a C compiler is",
    )


def pressure(path: Path) -> Finding:
    measures = "how crowded the processors are just now"
    try:
        found = re.search(r"avg60=([\d.]+)", path.read_text())
    except OSError:
        return Finding(
            "quiet machine",
            measures,
            PARTLY,
            f"this kernel does not tell ({path})",
            "look at the run queue of the host collector",
        )
    share = float(found[1]) if found else 0.0
    if share > 10:
        return Finding(
            "quiet machine",
            measures,
            PARTLY,
            f"{share:.0f} % of the last minute something waited for a processor",
            "figures of speed need a machine of their own",
        )
    return Finding("quiet machine", measures, WORKS)


def switched_off(environ: Mapping[str, str]) -> Finding:
    from profkit.attached import disabled

    measures = "anything at all"
    if disabled():
        return Finding(
            "switch",
            measures,
            CANNOT,
            f"PROFKIT_DISABLE={environ.get('PROFKIT_DISABLE', '')} switches profkit off",
            "unset PROFKIT_DISABLE",
        )
    return Finding("switch", measures, WORKS)
