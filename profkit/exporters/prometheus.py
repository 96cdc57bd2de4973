"""The figures of a run as a textfile for Prometheus' node exporter."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pyarrow.compute as pc

from profkit.analysis.overview import build_overview
from profkit.exporters.base import Window
from profkit.metrics.points import of_overview
from profkit.metrics.prometheus import write_textfile
from profkit.trace import Trace


class Prometheus:
    """One file, which is replaced if it exists: the collector reads the same name again."""

    name = "prometheus"
    title = "a textfile for Prometheus"
    suffix = ".prom"
    is_folder = False
    name_copies = 0
    row_bytes = MappingProxyType(dict.fromkeys(("steps", "spans"), 0))
    replaces = True

    def write(self, window: Window, path: Path) -> None:
        view = build_overview(window.trace, with_kernels=False)
        write_textfile(of_overview(view, last_step_s(window.trace)).points, path)


def last_step_s(trace: Trace) -> float | None:
    """Return the time of day at which the last step ended, if every rank knows it."""
    ends = []
    for rank in trace.ranks:
        anchor, own = rank.manifest.anchor, rank.table("steps")["end_ns"]
        if not len(own) or anchor.realtime_ns <= 0:
            return None
        ends.append(pc.max(own).as_py() + anchor.realtime_ns - anchor.monotonic_ns)
    return max(ends) / 1e9 if ends else None


EXPORTER = Prometheus()
