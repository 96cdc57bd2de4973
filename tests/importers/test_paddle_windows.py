"""Kernels of Paddle on a device, as its profiler writes them: no GPU has confirmed these files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profkit.clock import Anchor
from profkit.importers.window_rows import read_rows
from profkit.instrument.rows import SpanRow
from profkit.instrument.windows.windows import Window
from profkit.schema import SCHEMAS

US = 1_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _event(name: str, kind: str, start_us: float, us: float, **args: Any) -> dict[str, Any]:
    lane = {"pid": 0, "tid": 7} if "stream" in args else {"pid": 1, "tid": "(C++)77"}
    return {"ph": "X", "cat": kind, "name": f"{name}[{us} us]", "ts": start_us, "dur": us,
            "args": args, **lane}  # fmt: skip


def _launched(op: str, kernel: str, start_us: float, number: int) -> list[dict[str, Any]]:
    """An operator, its launch, and the kernel, which runs 500 us later."""
    on_device = {"correlation": number, "device": 0, "stream": 7}
    return [
        _event(op, "Operator", start_us, 20),
        _event("cudaLaunchKernel", "CudaRuntime", start_us + 5, 2, correlation=number),
        _event(kernel, "Kernel", start_us + 500, 30, **on_device),
    ]


def test_the_exchange_of_a_shared_batch_norm_is_communication_of_its_operator(
    tmp_path: Path,
) -> None:
    events = [
        *_launched("conv2d", "sm80_xmma_fprop_implicit_gemm_f16f16_nhwc", 100, 1),
        *_launched("sync_batch_norm", ALL_REDUCE, 140, 2),
        *_launched("sync_batch_norm_grad", ALL_REDUCE, 240, 3),
        *_launched("eager_reducer", ALL_REDUCE, 280, 4),
    ]
    path = tmp_path / "window.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    spans = [
        SpanRow(5, "forward", "forward", 0, "MainThread", 90 * US, 200 * US),
        SpanRow(5, "backward", "backward", 0, "MainThread", 230 * US, 310 * US),
    ]
    window = Window(Anchor(0, 0, 0), 5, [0, 2_000 * US], list(spans))
    names = SCHEMAS["kernels"].names[1:]
    rows = [dict(zip(names, row, strict=True)) for row in read_rows(path, window, device="gpu:0")]
    assert [(row["op"], row["category"], row["phase"], row["device"]) for row in rows] == [
        ("conv2d", "convolution", "forward", "gpu:0"),
        ("sync_batch_norm", "communication", "forward", "gpu:0"),
        ("sync_batch_norm_grad", "communication", "backward", "gpu:0"),
        ("eager_reducer", "communication", "backward", "gpu:0"),
    ]
    assert rows[0]["tensor_core"] is True
    assert [row["end_ns"] - row["start_ns"] for row in rows] == [30 * US] * 4
