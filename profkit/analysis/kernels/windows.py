"""Windows of steps with captured kernels: device time by phase and kind, and overhead.

Kernels overlap, so times are lengths of unions. If two run at once the time counts for the one
that began first, so that the parts add up to the time in which the device was busy, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.kernels.categories import MATRIX_WORK
from profkit.analysis.kernels.idle import HOST, device_lanes
from profkit.analysis.kernels.modules import ModuleTime, module_times
from profkit.frame.columns import durations, equals, names_and_codes, readings_of
from profkit.frame.estimate import Ints
from profkit.frame.intervals import split_lanes
from profkit.frame.selection import window_steps
from profkit.vocab import KERNELS, MEMORY, OPERATIONS, WINDOW_BORDER, WINDOW_READING

NO_PHASE = "no phase"


@dataclass(frozen=True)
class KernelWindows:
    """Device time in the windows, in ns per step and rank, and what the windows cost the job.

    `slowdown` is the step time in and around windows as a multiple of the usual step time; null if
    there are none of either.
    """

    steps: int
    kernels: int
    busy_ns: float
    by_phase: Mapping[str, float]
    by_category: Mapping[str, float]
    tensor_core_share: float | None
    """The share of the time of matrix work whose kernels' names tell; null on a CPU."""
    devices: tuple[str, ...]
    steps_left_out: int
    slowdown: float | None
    border_ns: float
    reading_ns: float
    by_module: tuple[ModuleTime, ...] = ()


def kernel_windows(
    kernels: pa.Table, steps: pa.Table, samples: pa.Table, used: Ints
) -> KernelWindows | None:
    """Return the figures of a run's windows; `None` if it has none."""
    left_out = window_steps(samples)
    others = pc.is_in(samples["source"], pa.array([OPERATIONS, MEMORY]))
    if not len(left_out) or (not kernels.num_rows and pc.any(others).as_py()):
        return None
    inside = kernels.filter(kernels["step"].is_valid())
    ranks = max(1, len(pc.unique(inside["rank"])))
    captured = len(pc.unique(inside["step"]))
    scale = 1 / max(1, captured * ranks)
    own = exclusive_times(inside)
    length, index = durations(steps).astype(np.float64), steps["step"].to_numpy()
    slow, usual = length[np.isin(index, left_out)], length[np.isin(index, used)]
    slowdown = None
    if len(slow) and len(usual) and np.median(usual) > 0:
        slowdown = float(np.median(slow) / np.median(usual))
    return KernelWindows(
        steps=captured,
        kernels=inside.num_rows,
        busy_ns=float(own.sum()) * scale,
        by_phase=_times_by_value(inside["phase"], own, scale),
        by_category=_times_by_value(inside["category"], own, scale),
        tensor_core_share=_tensor_core_share(inside),
        devices=tuple(sorted(map(str, pc.unique(inside["device"]).to_pylist()))),
        steps_left_out=int(np.isin(np.unique(steps["step"].to_numpy()), left_out).sum()),
        slowdown=slowdown,
        border_ns=_total(samples, WINDOW_BORDER),
        reading_ns=_total(samples, WINDOW_READING),
        by_module=module_times(inside, own, scale),
    )


def exclusive_times(kernels: pa.Table) -> Ints:
    """Return how long its device was busy with each kernel, and with none that began before."""
    if not kernels.num_rows:
        return np.empty(0, dtype=np.int64)
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    lane = device_lanes(kernels)
    order = np.lexsort((-end, start, lane))
    own = np.zeros(len(order), dtype=np.int64)
    for places in split_lanes(order, lane):
        reach = np.maximum.accumulate(end[places])
        before = np.concatenate([start[places][:1], np.maximum(reach[:-1], start[places][1:])])
        own[places] = np.maximum(end[places] - before, 0)
    return own


def _times_by_value(column: pa.ChunkedArray, times: Ints, scale: float) -> dict[str, float]:
    """Return the times over the column's values, longest first; null counts as no phase."""
    names, codes = names_and_codes(column)
    names.append(NO_PHASE)
    places = np.where(codes < 0, len(names) - 1, codes)
    totals = np.bincount(places, weights=times, minlength=len(names)) * scale
    found = {}
    for place in np.argsort(-totals, kind="stable"):
        if totals[place] > 0:
            found[str(names[place])] = float(totals[place])
    return found


def _tensor_core_share(kernels: pa.Table) -> float | None:
    """Return the Tensor Cores' share of the kernels' own durations.

    Their union would hide what runs next to something else.
    """
    is_matrix = pc.is_in(kernels["category"].cast(pa.string()), pa.array(sorted(MATRIX_WORK)))
    on_device = pa.array(~equals(kernels["device"], HOST))
    known = kernels.filter(
        pc.and_(is_matrix, pc.and_(kernels["tensor_core"].is_valid(), on_device))
    )
    length = durations(known)
    if not length.sum():
        return None
    used = known["tensor_core"].to_numpy(zero_copy_only=False).astype(bool)
    return float(length[used].sum() / length.sum())


def _total(samples: pa.Table, metric: str) -> float:
    return float(pc.sum(readings_of(samples, KERNELS, metric)["value"]).as_py() or 0.0)
