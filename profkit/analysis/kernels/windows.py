"""Windows of steps in which kernels were captured: what the device did in them, by phase and by kind of work, and what they cost.

Kernels overlap, so times are lengths of unions. Where two run at once the time counts for the one
that began first, so that the parts add up to the time in which the device was busy, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.estimate import Ints
from profkit.vocab import KERNELS, WINDOW_BORDER, WINDOW_READING, WINDOW_STEP

NO_PHASE = "no phase"


@dataclass(frozen=True)
class KernelWindows:
    """What the windows show, in ns a step and rank, and what they cost the job.

    `slowdown` is how much longer a step takes that is no measure of speed, as a factor of the
    others; null where there are none of either.
    """

    steps: int
    kernels: int
    busy_ns: float
    by_phase: Mapping[str, float]
    by_category: Mapping[str, float]
    tensor_core_share: float | None
    """Of the time of matrix work, where the kernels' names tell; null on a CPU, and where there is none."""
    devices: tuple[str, ...]
    steps_left_out: int
    slowdown: float | None
    border_ns: float
    reading_ns: float


def window_steps(samples: pa.Table) -> Ints:
    """The steps that are no measure of speed: a window was open in them on some rank, or was being read."""
    values = _own(samples, WINDOW_STEP)["value"].to_numpy()
    return np.unique(
        values[np.isfinite(values) & (values >= 0) & (values < 2**53)].astype(np.int64)
    )


def kernel_windows(
    kernels: pa.Table, steps: pa.Table, samples: pa.Table, used: Ints
) -> KernelWindows | None:
    """What a run's windows show; `None` where it has none."""
    left_out = window_steps(samples)
    if not len(left_out):
        return None
    inside = kernels.filter(kernels["step"].is_valid())
    ranks = max(1, len(pc.unique(inside["rank"])))
    captured = len(pc.unique(inside["step"]))
    scale = 1 / max(1, captured * ranks)
    own = exclusive_times(inside)
    return KernelWindows(
        steps=captured,
        kernels=inside.num_rows,
        busy_ns=float(own.sum()) * scale,
        by_phase=_sums(inside["phase"], own, scale, NO_PHASE),
        by_category=_sums(inside["category"], own, scale, ""),
        tensor_core_share=_tensor_core_share(inside),
        devices=tuple(sorted(map(str, pc.unique(inside["device"]).to_pylist()))),
        steps_left_out=int(np.isin(np.unique(steps["step"].to_numpy()), left_out).sum()),
        slowdown=_slowdown(steps, left_out, used),
        border_ns=_total(samples, WINDOW_BORDER),
        reading_ns=_total(samples, WINDOW_READING),
    )


def busy_by(kernels: pa.Table, column: str) -> dict[str, int]:
    """Time in which any device was busy, over the values of a column; all of them add up to the whole."""
    return {
        name: round(time)
        for name, time in _sums(kernels[column], exclusive_times(kernels), 1.0, NO_PHASE).items()
    }


def exclusive_times(kernels: pa.Table) -> Ints:
    """For each kernel, how long its device was busy with it and with none that began before."""
    if not kernels.num_rows:
        return np.empty(0, dtype=np.int64)
    start, end = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    lane = kernels["rank"].to_numpy().astype(np.int64) * (2**31) + _codes(kernels["device"])
    order = np.lexsort((-end, start, lane))
    own = np.zeros(len(order), dtype=np.int64)
    for places in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
        reach = np.maximum.accumulate(end[places])
        before = np.concatenate([start[places][:1], np.maximum(reach[:-1], start[places][1:])])
        own[places] = np.maximum(end[places] - before, 0)
    return own


def _codes(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.combine_chunks().indices.fill_null(-1).to_numpy(), dtype=np.int64)


def _sums(column: pa.ChunkedArray, times: Ints, scale: float, otherwise: str) -> dict[str, float]:
    """The times over the column's values, the longest first; null counts as `otherwise`."""
    if not len(column):
        return {}
    names = [*column.combine_chunks().dictionary.to_pylist(), otherwise]
    codes = _codes(column)
    totals = (
        np.bincount(np.where(codes < 0, len(names) - 1, codes), weights=times, minlength=len(names))
        * scale
    )
    return {
        str(names[place]): float(totals[place])
        for place in np.argsort(-totals, kind="stable")
        if totals[place] > 0
    }


def _tensor_core_share(kernels: pa.Table) -> float | None:
    """Of the kernels' own durations: the union would hide what runs beside something else."""
    matrix = kernels.filter(
        pc.is_in(
            kernels["category"].cast(pa.string()), pa.array(["gemm", "convolution", "attention"])
        )
    )
    known = matrix.filter(
        pc.and_(
            matrix["tensor_core"].is_valid(),
            pc.not_equal(matrix["device"].cast(pa.string()), "cpu"),
        )
    )
    length = known["end_ns"].to_numpy() - known["start_ns"].to_numpy()
    if not length.sum():
        return None
    return float(
        length[known["tensor_core"].to_numpy(zero_copy_only=False).astype(bool)].sum()
        / length.sum()
    )


def _slowdown(steps: pa.Table, left_out: Ints, used: Ints) -> float | None:
    length = (steps["end_ns"].to_numpy() - steps["start_ns"].to_numpy()).astype(np.float64)
    index = steps["step"].to_numpy()
    slow, usual = length[np.isin(index, left_out)], length[np.isin(index, used)]
    return (
        float(np.median(slow) / np.median(usual))
        if len(slow) and len(usual) and np.median(usual) > 0
        else None
    )


def _own(samples: pa.Table, metric: str) -> pa.Table:
    return samples.filter(
        pc.and_(pc.equal(samples["source"], KERNELS), pc.equal(samples["metric"], metric))
    )


def _total(samples: pa.Table, metric: str) -> float:
    return float(pc.sum(_own(samples, metric)["value"]).as_py() or 0.0)
