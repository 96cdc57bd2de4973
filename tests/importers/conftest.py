"""Traces for the importers' tests: real ones if present, and small synthetic ones.

The compiled scanner is used as well, if it can be built.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.importers.base import Imported, Importer, ImportOptions, Target
from profkit.importers.reading import chrome as _chrome
from tests.compiling import compile_module

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
KINETO = sorted(DATA.glob("kineto/*/*")) if DATA.is_dir() else []
NSYS = sorted(DATA.glob("nsys/*.sqlite")) if DATA.is_dir() else []
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the real traces (../shared/data) are not here"
)

Event = dict[str, Any]
Import = Callable[..., list[Imported]]


@pytest.fixture
def import_files(tmp_path: Path) -> Import:
    """Imports files with one importer into the test's own folder."""

    def call(importer: Importer, *paths: Path, **options: Any) -> list[Imported]:
        return list(
            importer.read(list(paths), Target(tmp_path / "traces", ImportOptions(**options)))
        )

    return call


@pytest.fixture(scope="session")
def compiled_scanner(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The scanner in C: the installed one, else built here."""
    if _chrome.CompiledScanner:
        return _chrome.CompiledScanner
    return compile_module(
        Path(_chrome.__file__).with_name("_scan.c"), tmp_path_factory.mktemp("scan")
    ).Scanner


BASE_US = 1_712_195_495_519_689
"""A time as older files have it, in microseconds since 1970: a double is 250 ns coarse there."""


def kernel(name: str, start: str, duration: str, correlation: int, **more: Any) -> Event:
    args = {
        "stream": 7,
        "device": 0,
        "correlation": correlation,
        "grid": [2, 1, 1],
        "block": [128, 1, 1],
        "registers per thread": 32,
        "shared memory": 48,
    }
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": duration,
        "args": {**args, **more},
    }


def host(category: str, name: str, start: str, duration: str, tid: Any = 11, **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 10,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def us(offset: str) -> str:
    """`offset` microseconds behind the base, as exact text."""
    whole, _, part = offset.partition(".")
    return f"{BASE_US + int(whole)}.{part or '0'}"


def two_steps() -> list[Event]:
    """Two steps of a training loop with data, forward, backward and optimizer.

    The backward runs on the engine's thread. Each phase but the first launches a kernel.
    """
    events: list[Event] = []
    for step in range(2):
        at = step * 1000

        def when(offset: int, at: int = at) -> str:
            return us(f"{at + offset}.125")

        number = step * 10
        events += [
            host("user_annotation", f"ProfilerStep#{step + 4}", us(str(at)), "1000"),
            host(
                "user_annotation",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                when(10),
                "90",
            ),
            host("cpu_op", "aten::mm", when(120), "50", **{"External id": number + 1}),
            host("cuda_runtime", "cudaLaunchKernel", when(130), "5", correlation=number + 1),
            kernel(
                "volta_sgemm_128x64_nt",
                when(140),
                "100.5",
                number + 1,
                **{"External id": number + 1},
            ),
            host(
                "cpu_op",
                "autograd::engine::evaluate_function: MmBackward0",
                when(300),
                "200",
                tid=12,
            ),
            host("cpu_op", "aten::mm", when(310), "50", tid=12, **{"External id": number + 2}),
            host(
                "cuda_runtime", "cudaLaunchKernel", when(320), "5", tid=12, correlation=number + 2
            ),
            kernel(
                "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn",
                when(330),
                "150",
                number + 2,
                **{"External id": number + 2},
            ),
            kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                when(400),
                "200",
                number + 3,
                stream=9,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": 1000,
                    "Out msg nelems": 1000,
                    "Group size": 2,
                    "dtype": "Float",
                    "Process Group Name": "0",
                },
            ),
            host("user_annotation", "Optimizer.step#SGD.step", when(700), "100"),
            host("cuda_runtime", "cudaLaunchKernel", when(710), "5", correlation=number + 4),
            kernel(
                "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2> >",
                when(720),
                "10",
                number + 4,
            ),
        ]
    return events


def write_trace(path: Path, events: list[Event], **header: Any) -> Path:
    """A file in which times stand as the numbers that their text says."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events})
    for key in ("ts", "dur"):
        text = _unquoted(text, key)
    path.write_text(text)
    return path


def _unquoted(text: str, key: str) -> str:
    parts = text.split(f'"{key}": "')
    return parts[0] + "".join(f'"{key}": ' + part.replace('"', "", 1) for part in parts[1:])
