"""fp32 against AMP, and a loader against DALI, on a simulated device with captured kernels.

The times of all kernels are given, so what each part of a step must change by is known.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from profkit.explain.explained import Explained, explain
from profkit.explain.precision import CASTS, LAUNCHES, MATRIX, OTHER_WORK, PARTS
from profkit.importers.window_rows import read_rows
from profkit.instrument.windows.windows import WindowCapture, WindowPlan
from profkit.report.ledger_document import explained
from profkit.show import text
from profkit.trace import Trace
from profkit.vocab import RUN_FILE
from tests.accelerator.jobs import MS, Job, run_ranks
from tests.accelerator.torch_fakes import on_cuda
from tests.accelerator.torch_job import TorchRank
from tests.accelerator.torch_parts import Layer
from tests.accelerator.tracing import SimulatedProfiler

US = 1_000
ALLOWED = 0.05

GEMM = "ampere_sgemm_128x64_nn"
HALF_GEMM = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn"
NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu_functor<float>>"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()>"
DECODE = "void dali::nvjpeg::decode_kernel"

Kernels = Sequence[tuple[str, int]]
"""Names and times of a layer's kernels in one direction."""


@dataclasses.dataclass(frozen=True)
class Side:
    """The kernels of a step's forward; those of its backward are the same, twice as long."""

    kernels: Kernels
    precision: str = "fp32"
    loader: str = "torch DataLoader"
    job: Job = Job(steps=120, optimizer_ns=1 * MS, copy_ns=1 * MS, loss_every=1)  # noqa: RUF009
    decode_ns: int = 0
    """Time of the device that a loader takes which decodes there."""

    def total(self, *names: str) -> int:
        return 3 * sum(ns for name, ns in self.kernels if name in names)


class NamedLayer(Layer):
    """A layer whose kernels have names and times of their own."""

    def __init__(self, device: Any, kernels: Kernels) -> None:
        super().__init__(device, 1, 2)
        self.parts = kernels

    def launch(self, duration_ns: int) -> None:
        for name, ns in self.parts:
            self.device.launch(ns * duration_ns, name)


def _train(rank: Any, side: Side, plan: str) -> None:
    recorder, append = rank.recording.recorder, rank.recording.sink.appender
    capture = WindowCapture(
        recorder,
        WindowPlan.parse(plan),
        SimulatedProfiler(rank.device),
        append("kernels"),
        append("samples"),
        read_rows=functools.partial(read_rows, device="cuda:0"),
        clock=rank.host,
    )
    model = torch.nn.Sequential(NamedLayer(rank.device, side.kernels))
    optimizer = rank.make_optimizer(model)
    for batch in rank.batches():
        if side.decode_ns:
            rank.device.launch(side.decode_ns, DECODE)
        loss = on_cuda(model(rank.copy(batch)).sum())
        loss.backward()
        optimizer.step()
        loss.item()
    capture.finish()


def _compare(folder: Path, base: Side, target: Side, plan: str = "40:44") -> tuple[Explained, str]:
    traces, ended = [], []
    for name, side in (("base", base), ("target", target)):
        loop: Callable[[Any], None] = functools.partial(_train, side=side, plan=plan)
        done = run_ranks(TorchRank, [side.job], loop, folder / name)
        assert done.run is not None
        path = done.run / RUN_FILE
        manifest = json.loads(path.read_text())
        manifest["config"] |= {"precision": side.precision, "loader": side.loader}
        path.write_text(json.dumps(manifest))
        traces.append(Trace.open(done.run))
        ended.append(done.ended_ns[0])
    view = explain(traces[0], traces[1])
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    steps = base.job.steps
    assert gap_ns == pytest.approx((ended[1] - ended[0]) / steps, rel=ALLOWED, abs=50 * US)
    return view, " ".join(text.document(explained(view)).split())


def _check_parts(view: Explained, base: Side, target: Side, late_ns: tuple[int, int]) -> None:
    """Each part of the captured step is within 5 % of what was given, and they add up."""
    found = view.precision
    assert found is not None
    truth = {
        MATRIX: (base.total(GEMM), target.total(HALF_GEMM)),
        CASTS: (base.total(CAST), target.total(CAST)),
        # The optimizer's kernel and the copy of the batch have no known names here.
        OTHER_WORK: tuple(side.total(NORM, RELU) + 2 * MS for side in (base, target)),
        LAUNCHES: late_ns,
    }
    for name, (before, after) in truth.items():
        part = found.part(name)
        assert part.base_ns == pytest.approx(before, rel=ALLOWED, abs=50 * US), name
        assert part.target_ns == pytest.approx(after, rel=ALLOWED, abs=50 * US), name
    steps = sum(part.delta_ns for part in found.parts)
    gap_ns = view.ledger.total.delta.value * view.ledger.samples_per_step
    assert steps == pytest.approx(gap_ns, rel=ALLOWED, abs=100 * US)
    assert [part.name for part in found.parts] == list(PARTS)


def _amp(kernels: Kernels, **changes: Any) -> Side:
    return Side(kernels, precision="fp16", **changes)


def test_matrix_work_gains_what_its_units_give(tmp_path: Path) -> None:
    base = Side([(GEMM, 8 * MS), (NORM, 2 * MS), (RELU, 1 * MS)])
    target = _amp([(CAST, MS // 2), (HALF_GEMM, 2 * MS), (NORM, 1 * MS), (RELU, MS // 2)])
    view, words = _compare(tmp_path, base, target)
    _check_parts(view, base, target, (0, 0))
    assert view.ledger.verdict.value == "improvement"
    assert "is 68.6 % of the base's captured step; it changes by -18.0 ms" in words
    assert "Casts and layout copies change by +1.50 ms" in words
    (cause,) = [each for each in view.causes if each.kind == "setting_changed"]
    assert cause.cost_ns is not None
    assert abs(cause.cost_ns.value) == pytest.approx(21 * MS, rel=ALLOWED)


def test_work_that_memory_limits_halves_with_its_bytes(tmp_path: Path) -> None:
    base = Side([(GEMM, 1 * MS), (NORM, 8 * MS), (RELU, 4 * MS)])
    target = _amp([(HALF_GEMM, MS // 4), (NORM, 4 * MS), (RELU, 2 * MS)])
    view, words = _compare(tmp_path, base, target)
    _check_parts(view, base, target, (0, 0))
    assert view.ledger.verdict.value == "improvement"
    assert "Other kernels take 0.53 times as long" in words


def test_casts_take_what_the_units_gain(tmp_path: Path) -> None:
    base = Side([(GEMM, 4 * MS), (NORM, 2 * MS)])
    target = _amp([(CAST, 2 * MS), (HALF_GEMM, 2 * MS), (NORM, 2 * MS)])
    view, words = _compare(tmp_path, base, target)
    _check_parts(view, base, target, (0, 0))
    assert view.ledger.verdict.value != "improvement"
    (cause,) = [each for each in view.causes if each.kind == "amp_without_effect"]
    assert "casts and layout copies add 6.00 ms per captured step" in cause.evidence
    assert "Casts and layout copies change by +6.00 ms" in words


def test_what_the_host_launches_too_slowly_stays(tmp_path: Path) -> None:
    """Each launch takes the host 50 us, and no kernel takes the device so long."""
    slow = Job(steps=120, optimizer_ns=20 * US, copy_ns=20 * US, launch_ns=50 * US, loss_every=1)
    kernels: list[tuple[str, int]] = [(GEMM, 15 * US), (RELU, 9 * US)] * 60
    halved = [(HALF_GEMM, 5 * US), (RELU, 5 * US)] * 60
    base, target = Side(kernels, job=slow), _amp(halved, job=slow)
    view, words = _compare(tmp_path, base, target)
    found = view.precision
    assert found is not None
    launches, matrix = found.part(LAUNCHES), found.part(MATRIX)
    saved = found.part(OTHER_WORK).delta_ns + matrix.delta_ns
    assert matrix.base_ns == pytest.approx(3 * 60 * 15 * US, rel=ALLOWED)
    assert launches.delta_ns == pytest.approx(-saved, rel=ALLOWED), "what kernels save is idle"
    assert view.ledger.verdict.value != "improvement"
    (cause,) = [each for each in view.causes if each.kind == "amp_without_effect"]
    assert "because the host launches late" in cause.evidence
    assert "the device waits for the host's launches, which no precision makes faster" in words


def test_without_kernels_the_report_says_what_they_would_show(tmp_path: Path) -> None:
    kernels = [(GEMM, 4 * MS)]
    view, words = _compare(tmp_path, Side(kernels), _amp(kernels), plan="1000:1001")
    assert view.precision is None
    assert "Without kernels of both runs it is not known how much" in words


def test_dali_takes_the_wait_for_data_and_some_time_of_the_device(tmp_path: Path) -> None:
    kernels = [(GEMM, 4 * MS), (NORM, 2 * MS)]
    job = Job(steps=120, optimizer_ns=1 * MS, copy_ns=1 * MS, loss_every=1)
    base = Side(kernels, job=dataclasses.replace(job, data_ns=30 * MS))
    target = Side(kernels, loader="dali", job=job, decode_ns=3 * MS)
    view, _ = _compare(tmp_path, base, target)
    assert view.precision is None
    assert view.ledger.verdict.value == "improvement"
    data = view.ledger.find("data")
    assert data is not None
    scale = view.ledger.samples_per_step
    assert data.delta.value * scale == pytest.approx(-30 * MS, rel=ALLOWED)
    assert view.ledger.total.delta.value * scale == pytest.approx(-27 * MS, rel=ALLOWED)
    assert [cause.kind for cause in view.causes][:1] == ["input_bound"]
    assert view.kernels is not None
    grown = [row for row in view.kernels.rows if row.name == DECODE or "other" in row.name]
    assert sum(row.delta_ns for row in grown) == pytest.approx(3 * MS, rel=ALLOWED)
