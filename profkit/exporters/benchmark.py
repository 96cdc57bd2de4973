"""The row of a published benchmark: ten fields as JSON, then AI-Rank's lines.

The fields are those of the JSON that `run_benchmark.sh` of the PaddlePaddle benchmarks prints. A
throughput is of all ranks together, whatever a log prints, and a figure that is not known is null.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profkit.analysis.overview import Overview, build_overview
from profkit.exporters.base import Window
from profkit.text import safe_text
from profkit.trace import Trace
from profkit.vocab import RunState

FIELDS = (
    "log_file",
    "model_name",
    "mission_name",
    "direction_id",
    "run_mode",
    "index",
    "gpu_num",
    "FINAL_RESULT",
    "JOB_FAIL_FLAG",
    "UNIT",
)
SPEED, VISION, LANGUAGE = 1, 0, 1
"""Values of `index` (a speed) and of `direction_id` (the kind of task)."""

_AI_RANK_UNITS = {"eval_accuracy": "", "target_quality_time": "sec", "total_use_time": "sec"}
"""Results of a log that AI-Rank has a line for, with the unit that it prints."""


class Benchmark:
    """One line of JSON, then a line for each figure that AI-Rank ranks."""

    name = "benchmark"
    title = "the row of a published benchmark"
    suffix = ".benchmark.txt"
    is_folder = False
    name_copies = 0
    row_bytes = MappingProxyType(dict.fromkeys(("steps", "spans", "kernels"), 0))

    def write(self, window: Window, path: Path) -> None:
        view = build_overview(window.trace, with_kernels=False)
        row = json.dumps(benchmark_row(view), ensure_ascii=False)
        lines = [row, *ai_rank_lines(window.trace, view)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def benchmark_row(view: Overview) -> dict[str, Any]:
    """Return the ten fields, and two more for one rank, as the published rows have them."""
    config = view.config
    unit = str(config.get("sample_unit") or "samples")
    precision, batch = config.get("precision"), config.get("batch_size")
    sources = config.get("sources") or [view.name]
    result = find_result(view)
    values = (
        sources[0],
        "_".join(filter(None, (view.workload, f"bs{batch}" if batch else "", precision))),
        view.workload,
        LANGUAGE if unit in {"sequences", "words"} else VISION,
        "sp" if view.world_size == 1 else "mp",
        SPEED,
        view.world_size,
        result,
        int(view.state is RunState.ABORTED or result is None),
        f"{unit}/sec",
    )
    row = dict(zip(FIELDS, values, strict=True))
    if view.world_size == 1:
        row |= {"log_with_profiler": None, "profiler_path": None}
    return row


def find_result(view: Overview) -> float | None:
    """Return the throughput of all ranks, or `None` if it is not known."""
    value = view.throughput.value
    return value if view.is_whole and math.isfinite(value) else None


def ai_rank_lines(trace: Trace, view: Overview) -> Iterator[str]:
    """Yield AI-Rank's lines: the throughput of the used steps, and results that a log states.

    They have the time at which the run ended, or the present if its log prints no years.
    """
    manifest = trace.manifest
    moment = (manifest.ended_ns or manifest.created_ns or time.time_ns()) / 1e9
    prefix = f"AI-Rank-log {moment:.6f}"
    result = find_result(view)
    if result is not None:
        unit = str(view.config.get("sample_unit") or "samples")
        yield f"{prefix} avg_ips:{result:.5g}{safe_text(unit)}/sec"
    for stated in view.config.get("stated") or []:
        what = stated.get("what") if isinstance(stated, dict) else None
        if what in _AI_RANK_UNITS and isinstance(stated.get("value"), int | float):
            yield f"{prefix} {what}:{stated['value']}{_AI_RANK_UNITS[what]}"


EXPORTER = Benchmark()
