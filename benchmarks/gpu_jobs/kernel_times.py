"""How long the kernels of each phase take by torch.profiler, which profkit has no part in."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

PHASES = ("forward", "backward", "optimizer")
KINDS = {"kernel", "gpu_memset", "gpu_memcpy"}


def measure(job: Any, batches: Iterator[Any], steps: int) -> dict[str, float]:
    """Profile steps, and return the milliseconds of their phases and of the busy device."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    job.train_step(next(batches))
    job.rest()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            job.train_step(next(batches))
        job.rest()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read(json.loads(path.read_text())["traceEvents"], steps)


def read(events: list[dict[str, Any]], steps: int) -> dict[str, float]:
    """Return, per phase, the median time from its first kernel's start to its last one's end."""
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] in PHASES
    )
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in {"cuda_runtime", "cuda_driver"}
        and "correlation" in event.get("args", {})
    }
    kernels = [event for event in events if event.get("cat") in KINDS]
    found: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for event in kernels:
        launched = launches.get(event["args"].get("correlation"))
        around = [] if launched is None else [row for row in ranges if row[0] <= launched <= row[1]]
        if around:
            place = (around[-1][0], around[-1][2])
            found.setdefault(place, []).append((event["ts"], event["ts"] + event["dur"]))
    lengths: dict[str, list[float]] = {}
    for (_, phase), times in sorted(found.items()):
        length = max(end for _, end in times) - min(start for start, _ in times)
        lengths.setdefault(phase, []).append(length / 1e3)
    result = {f"{phase}_ms": statistics.median(rows) for phase, rows in lengths.items()}
    result["busy_ms"] = busy([(e["ts"], e["ts"] + e["dur"]) for e in kernels]) / 1e3 / steps
    result["profiled_kernels"] = len(kernels) / steps
    return result


def busy(times: list[tuple[float, float]]) -> float:
    """Return how long at least one of these lasts."""
    total, last = 0.0, float("-inf")
    for start, end in sorted(times):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total
