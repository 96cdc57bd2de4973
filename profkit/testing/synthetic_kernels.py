"""Kernels of a synthetic run: a handful of kinds, in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from profkit.importers.reading.columns import constant, flags, numbers, triples
from profkit.testing.synthetic_timeline import KERNEL_STREAM, Ints, Plan, Timeline

KERNEL_KINDS: Mapping[str, Sequence[Any]] = {
    "name": (
        "sm90_xmma_fprop_implicit_gemm_f16f16_nhwc",
        "ampere_sgemm_128x64_nn",
        "void cudnn::bn_fw_tr_1C11_kernel_NHWC<float, 512>",
        "void at::native::vectorized_elementwise_kernel<4, relu>",
        "void at::native::reduce_kernel<512, 1>",
        "Memcpy HtoD (Pinned -> Device)",
    ),
    "category": (
        "convolution",
        "gemm",
        "normalisation",
        "elementwise",
        "reduction",
        "copy to device",
    ),
    "op": (
        "aten::cudnn_convolution",
        "aten::mm",
        "aten::cudnn_batch_norm",
        "aten::relu_",
        "aten::sum",
        "aten::copy_",
    ),
    "stream": (7, 7, 7, 7, 7, 13),
    "blocks": (1568, 512, 256, 784, 32, 0),
    "threads": (256, 128, 512, 128, 512, 0),
    "registers": (232, 122, 40, 16, 32, 0),
    "shared_bytes": (98_304, 12_288, 4_096, 0, 2_048, 0),
    "bytes": (51_380_224, 8_388_608, 102_760_448, 25_690_112, 4_194_304, 19_267_584),
    "flops": (3.7e9, 1.1e9, 0.0, 0.0, 0.0, 0.0),
    "tensor_core": (True, False, False, False, False, False),
}
"""The properties of six kinds of kernels, by column. A copy has no blocks and no threads."""

PHASE_SHARES = {"forward": 0.35, "backward": 0.5, "optimizer": 0.15}
"""The shares of a step's kernels that run in these phases."""

LAUNCH_LEAD_NS = 30_000
"""The host launches a kernel this much before it starts."""


def kernel_columns(plan: Plan, timeline: Timeline, rank: int, device: str) -> dict[str, Any]:
    """Return the kernels of a rank. In a phase they follow each other with small gaps."""
    bounds = np.round(np.cumsum([0.0, *PHASE_SHARES.values()]) * plan.kernels_per_step)
    kernels_by_phase = np.diff(bounds).astype(np.int64)
    phase = np.repeat(np.arange(len(PHASE_SHARES)), kernels_by_phase)
    place = np.arange(plan.kernels_per_step) - bounds[phase].astype(np.int64)
    begin, end = timeline.phase_times(tuple(PHASE_SHARES), rank)
    length = (end - begin)[:, phase]
    start = (begin[:, phase] + length * place // kernels_by_phase[phase]).ravel()
    room = (length // kernels_by_phase[phase]).ravel()
    random = plan.random(rank, KERNEL_STREAM)
    busy = (random.uniform(0.5, 0.95, len(start)) * room).astype(np.int64)
    kinds = random.integers(0, len(KERNEL_KINDS["name"]), len(start))
    return {
        "device": constant(device, len(start)),
        "start_ns": start,
        "end_ns": start + busy,
        "correlation": np.arange(len(start)),
        "launch_ns": start - LAUNCH_LEAD_NS,
        "step": np.repeat(np.arange(plan.steps), plan.kernels_per_step),
        "phase": _name_column(tuple(PHASE_SHARES), np.tile(phase, plan.steps)),
        **_kind_columns(kinds),
    }


def _kind_columns(kinds: Ints) -> dict[str, Any]:
    """Return the columns that depend on nothing but the kernels' kinds."""
    columns: dict[str, Any] = {}
    for field, values in KERNEL_KINDS.items():
        if field in {"name", "category", "op"}:
            columns[field] = _name_column(values, kinds)
        else:
            columns[field] = np.array(values)[kinds]
    for extents, field in (("grid", "blocks"), ("block", "threads")):
        first = columns.pop(field)
        ones = np.ones_like(first)
        columns[extents] = triples(np.stack([first, ones, ones], axis=1), first > 0)
    columns["flops"] = numbers(columns["flops"], columns["flops"] > 0)
    columns["tensor_core"] = flags(columns["tensor_core"])
    return columns


def _name_column(values: Sequence[str], ids: Ints) -> pa.DictionaryArray:
    """Return a column of names. The trace keeps all names, even those that no row uses."""
    known = pa.array(values, pa.string())
    return pa.DictionaryArray.from_arrays(numbers(ids.astype(np.int32)), known)
