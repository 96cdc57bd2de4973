"""Seeded runs of any number of ranks, steps and kernels, as a real job would have left them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profkit.clock import Anchor
from profkit.trace.files import RankFiles
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState, rank_folder

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

MEAN_PHASE_NS: Mapping[str, int] = {
    "data": 2_000_000,
    "h2d": 500_000,
    "forward": 12_000_000,
    "backward": 24_000_000,
    "allreduce": 3_000_000,
    "optimizer": 4_000_000,
}
"""What a synthetic step is made of unless a test says otherwise; `allreduce` only where there are ranks to meet."""

BEGIN_NS = 1_000_000_000_000
BEGIN_REALTIME_NS = 1_700_000_000_000_000_000
WRITER_SAMPLE_NS = 250_000_000
DEVICE_LAG_NS = 40_000
SLOW_FIRST_STEPS = (6.0, 3.0, 1.5)
SLOW_EPOCH_START = 12.0
REMAINDER = 0.005

_BEFORE_MEETING = ("data", "h2d", "forward", "backward")
_AFTER_MEETING = ("optimizer", "other")
_ORDER = (*_BEFORE_MEETING, "allreduce", *_AFTER_MEETING)
_BUCKET_BYTES = 26_214_400

_SHARED = 1 << 20
_LOSS_STREAM, _KERNEL_STREAM = 100, 101
"""Random streams are told apart by these, and by a phase's place in `_ORDER` from 1."""


@dataclass(frozen=True)
class _Plan:
    """What a synthetic run is to look like."""

    ranks: int
    steps: int
    kernels_per_step: int
    seed: int
    phase_ns: Mapping[str, int]
    rank_phase_ns: Mapping[int, Mapping[str, int]]
    jitter: float
    steps_per_epoch: int
    batch_size: int
    last_batch_size: int
    buckets: int
    device: str
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(
            phase
            for phase in _ORDER
            if self.phase_ns.get(phase) and (phase != "allreduce" or self.ranks > 1)
        )

    def mean_ns(self, phase: str, rank: int) -> int:
        return (
            self.rank_phase_ns.get(rank, {}).get(phase, self.phase_ns[phase])
            if phase in self.phases
            else 0
        )


def synthetic_trace(
    folder: Path,
    *,
    ranks: int = 1,
    steps: int = 100,
    kernels_per_step: int = 0,
    seed: int = 0,
    phase_ns: Mapping[str, int] | None = None,
    rank_phase_ns: Mapping[int, Mapping[str, int]] | None = None,
    jitter: float = 0.05,
    steps_per_epoch: int = 50,
    batch_size: int = 32,
    last_batch_size: int | None = None,
    buckets: int = 4,
    device: str = "cpu",
    workload: str = "synthetic",
    framework: str = "pytorch",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a complete run into `folder`, which must not exist; the same arguments give the same tables.

    `phase_ns` replaces mean durations (0 leaves a phase out), `rank_phase_ns` those of single
    ranks. `jitter` is the relative spread of a duration: 0 makes all but slow steps equal. A slow
    step is one of the first three, or an epoch's first. Ranks wait for each other in `allreduce`.
    """
    means = _mean_durations(phase_ns or {})
    last = batch_size if last_batch_size is None else last_batch_size
    knobs = {"gpus": ranks, "batch_size": batch_size, "amp": False, **(config or {})}
    plan = _Plan(
        ranks,
        steps,
        kernels_per_step,
        seed,
        means,
        rank_phase_ns or {},
        jitter,
        steps_per_epoch,
        batch_size,
        last,
        buckets,
        device,
        knobs,
    )
    folder.mkdir(mode=0o700, parents=True)
    timeline = _build_timeline(plan)
    for rank in range(ranks):
        _write_rank(folder, plan, timeline, rank)
    _write_manifest(folder, plan, timeline, workload, framework)
    return folder


def _mean_durations(given: Mapping[str, int]) -> dict[str, int]:
    if unknown := given.keys() - set(_ORDER):
        raise ValueError(f"no such phases: {', '.join(sorted(unknown))}")
    return {**MEAN_PHASE_NS, **given}


@dataclass(frozen=True)
class _Timeline:
    """When each phase of each step began and ended, as arrays by rank and step."""

    begin_ns: Mapping[str, Ints]
    end_ns: Mapping[str, Ints]
    step_begin_ns: Ints
    step_end_ns: Ints


def _build_timeline(plan: _Plan) -> _Timeline:
    """Lay the phases end to end; all ranks leave a step's all-reduce at the same moment."""
    took = {
        phase: np.stack([_durations(plan, phase, rank) for rank in range(plan.ranks)])
        for phase in _ORDER
    }
    took["allreduce"][:] = took["allreduce"].min(axis=0)
    lead: Ints = np.sum([took[phase] for phase in _BEFORE_MEETING], axis=0)
    tail: Ints = np.sum([took[phase] for phase in _AFTER_MEETING], axis=0)
    tail = tail + (REMAINDER * (lead + took["allreduce"] + tail)).astype(np.int64)
    meeting_end = np.broadcast_to(_meeting_ends(lead, took["allreduce"], tail), lead.shape)
    step_end = meeting_end + tail
    step_begin = np.concatenate([np.full((plan.ranks, 1), BEGIN_NS), step_end[:, :-1]], axis=1)
    return _lay_phases(took, step_begin, step_end, meeting_end)


def _meeting_ends(lead: Ints, transfer: Ints, tail: Ints) -> Ints:
    """When each step's all-reduce ends: from one to the next lie the slowest rank's way and the transfer."""
    first = lead[:, :1].max(axis=0)
    between = (tail[:, :-1] + lead[:, 1:]).max(axis=0)
    return BEGIN_NS + np.cumsum(np.concatenate([first, between]) + transfer[0])


def _lay_phases(
    took: Mapping[str, Ints], step_begin: Ints, step_end: Ints, meeting_end: Ints
) -> _Timeline:
    begin, end = {}, {}
    at = step_begin
    for phase in _ORDER:
        begin[phase] = at
        at = end[phase] = meeting_end if phase == "allreduce" else at + took[phase]
    return _Timeline(begin, end, step_begin, step_end)


def _durations(plan: _Plan, phase: str, rank: int) -> Ints:
    """A phase's duration in each step: the mean, a drift that all ranks share, and noise of its own."""
    drift = _smooth(np.random.default_rng([plan.seed, _SHARED]).standard_normal(plan.steps))
    noise = np.random.default_rng([plan.seed, rank, 1 + _ORDER.index(phase)]).standard_normal(
        plan.steps
    )
    factor = np.maximum(0.1, 1 + plan.jitter * (0.8 * drift + 0.6 * noise))
    return (plan.mean_ns(phase, rank) * factor * _slowness(plan, phase)).astype(np.int64)


def _smooth(noise: Floats) -> Floats:
    """Noise in which a step resembles the ones before it, still with variance one."""
    memory = 0.8 ** np.arange(24)
    smooth: Floats = np.convolve(noise, memory)[: len(noise)] / np.sqrt((memory**2).sum())
    return smooth


def _slowness(plan: _Plan, phase: str) -> Floats:
    """How much longer than usual a phase takes where a run or an epoch begins."""
    factor = np.ones(plan.steps)
    if phase == "data" and plan.steps_per_epoch:
        factor[:: plan.steps_per_epoch] = SLOW_EPOCH_START
    if phase in {"forward", "backward"}:
        factor[: len(SLOW_FIRST_STEPS)] = SLOW_FIRST_STEPS[: plan.steps]
    return factor


def _write_manifest(
    folder: Path, plan: _Plan, timeline: _Timeline, workload: str, framework: str
) -> None:
    length = int(timeline.step_end_ns.max()) - BEGIN_NS
    RunManifest(
        workload=workload,
        framework=framework,
        state=RunState.COMPLETE,
        world_size=plan.ranks,
        created_ns=BEGIN_REALTIME_NS,
        ended_ns=BEGIN_REALTIME_NS + length,
        profkit_version="0",
        config=plan.config,
        environment={"system": "synthetic"},
    ).write(folder)


def _write_rank(folder: Path, plan: _Plan, timeline: _Timeline, rank: int) -> None:
    files = RankFiles(folder / rank_folder(rank), rank)
    device = f"{plan.device}:{rank}" if plan.device == "cuda" else plan.device
    RankManifest(
        rank,
        f"host{rank // 8}",
        1000 + rank,
        device,
        Anchor(BEGIN_NS, BEGIN_REALTIME_NS, 100),
        rank % 8,
    ).write(files.folder)
    files.write("steps", _steps(plan, timeline, rank))
    files.write("spans", _spans(plan, timeline, rank))
    if plan.kernels_per_step:
        files.write("kernels", _kernels(plan, timeline, rank, device))
    if plan.ranks > 1:
        files.write("collectives", _collectives(plan, timeline, rank))
    files.write("samples", _samples(timeline, rank))
    files.close()


def _steps(plan: _Plan, timeline: _Timeline, rank: int) -> dict[str, Any]:
    index = np.arange(plan.steps)
    samples = np.full(plan.steps, plan.batch_size)
    if plan.steps_per_epoch:
        samples[plan.steps_per_epoch - 1 :: plan.steps_per_epoch] = plan.last_batch_size
    noise = np.random.default_rng([plan.seed, rank, _LOSS_STREAM]).standard_normal(plan.steps)
    return {
        "step": index,
        "start_ns": timeline.step_begin_ns[rank],
        "end_ns": timeline.step_end_ns[rank],
        "sample_count": samples,
        "loss": 0.2 + 2.3 / (1 + index / 40) + 0.02 * noise,
        "instrumented": pa.array([True] * plan.steps),
        "epoch": index // (plan.steps_per_epoch or plan.steps),
    }


def _spans(plan: _Plan, timeline: _Timeline, rank: int) -> dict[str, Any]:
    """One row a phase and step, in the order of time."""
    count = len(plan.phases)
    which = np.tile(np.arange(count), plan.steps)
    phase = _names(plan.phases, which)
    start = np.stack([timeline.begin_ns[name][rank] for name in plan.phases], axis=1).ravel()
    end = np.stack([timeline.end_ns[name][rank] for name in plan.phases], axis=1).ravel()
    copied = np.array([name == "h2d" for name in plan.phases])[which]
    on_device = np.array([name != "data" for name in plan.phases])[which] & plan.device.startswith(
        "cuda"
    )
    return {
        "step": np.repeat(np.arange(plan.steps), count),
        "phase": phase,
        "name": phase,
        "depth": np.zeros(len(which), np.int64),
        "thread": _names(("MainThread",), np.zeros(len(which), np.int64)),
        "start_ns": start,
        "end_ns": end,
        "device_start_ns": _nullable(start + DEVICE_LAG_NS, on_device),
        "device_end_ns": _nullable(end + DEVICE_LAG_NS, on_device),
        "bytes": _nullable(np.full(len(which), plan.batch_size * 602_112), copied),
    }


def _collectives(plan: _Plan, timeline: _Timeline, rank: int) -> dict[str, Any]:
    """One all-reduce a bucket and step. The backward pass hides all but the last."""
    ready, start, end = (
        np.stack(part, axis=2)[rank].ravel() for part in _bucket_times(plan, timeline)
    )
    count = len(ready)
    bucket = np.tile(np.arange(plan.buckets), plan.steps)
    same = np.zeros(count, np.int64)
    return {
        "communicator": _names(("default_pg",), same),
        "sequence": np.arange(count),
        "op": _names(("all_reduce",), same),
        "bytes": np.where(bucket == plan.buckets - 1, _BUCKET_BYTES // 3, _BUCKET_BYTES),
        "dtype": _names(("float32",), same),
        "group_size": np.full(count, plan.ranks),
        "ready_ns": ready,
        "start_ns": start,
        "end_ns": end,
        "backend": _names(("nccl" if plan.device.startswith("cuda") else "gloo",), same),
        "step": np.repeat(np.arange(plan.steps), plan.buckets),
        "bucket": bucket,
    }


def _bucket_times(plan: _Plan, timeline: _Timeline) -> tuple[list[Ints], list[Ints], list[Ints]]:
    """When each bucket was ready, begun and done, by rank and step. A bucket follows the one before it.

    All ranks have a bucket's result at one moment: the last one's is the end of the phase, an
    earlier one's lies before the next bucket's data is ready everywhere.
    """
    begin = timeline.begin_ns["backward"]
    length = timeline.end_ns["backward"] - begin
    ready = [begin + length * (bucket + 1) // plan.buckets for bucket in range(plan.buckets)]
    latest = [times.max(axis=0) for times in ready]
    done = [
        np.broadcast_to(now + (after - now) * 4 // 5, begin.shape)
        for now, after in itertools.pairwise(latest)
    ]
    done.append(timeline.end_ns["allreduce"])
    start = [
        ready[0],
        *(np.maximum(mine, before) for mine, before in zip(ready[1:], done, strict=False)),
    ]
    return ready, start, done


class _KernelKind(NamedTuple):
    """A kernel as it stands in a synthetic trace again and again; a copy has no blocks."""

    name: str
    category: str
    op: str
    stream: int
    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    bytes: int
    flops: float
    tensor_core: bool


_KERNEL_KINDS = (
    _KernelKind(
        "sm90_xmma_fprop_implicit_gemm_f16f16_nhwc",
        "convolution",
        "aten::cudnn_convolution",
        7,
        1568,
        256,
        232,
        98_304,
        51_380_224,
        3.7e9,
        True,
    ),
    _KernelKind(
        "ampere_sgemm_128x64_nn",
        "gemm",
        "aten::mm",
        7,
        512,
        128,
        122,
        12_288,
        8_388_608,
        1.1e9,
        False,
    ),
    _KernelKind(
        "void cudnn::bn_fw_tr_1C11_kernel_NHWC<float, 512>",
        "normalisation",
        "aten::cudnn_batch_norm",
        7,
        256,
        512,
        40,
        4_096,
        102_760_448,
        0.0,
        False,
    ),
    _KernelKind(
        "void at::native::vectorized_elementwise_kernel<4, relu>",
        "elementwise",
        "aten::relu_",
        7,
        784,
        128,
        16,
        0,
        25_690_112,
        0.0,
        False,
    ),
    _KernelKind(
        "void at::native::reduce_kernel<512, 1>",
        "reduction",
        "aten::sum",
        7,
        32,
        512,
        32,
        2_048,
        4_194_304,
        0.0,
        False,
    ),
    _KernelKind(
        "Memcpy HtoD (Pinned -> Device)",
        "copy to device",
        "aten::copy_",
        13,
        0,
        0,
        0,
        0,
        19_267_584,
        0.0,
        False,
    ),
)
_KERNEL_PHASES = {"forward": 0.35, "backward": 0.5, "optimizer": 0.15}


def _kernels(plan: _Plan, timeline: _Timeline, rank: int, device: str) -> dict[str, Any]:
    """`kernels_per_step` rows a step that follow each other with small gaps inside their phases."""
    count = plan.steps * plan.kernels_per_step
    random = np.random.default_rng([plan.seed, rank, _KERNEL_STREAM])
    phase, place, room = _kernel_slots(plan.kernels_per_step)
    begin = np.stack([timeline.begin_ns[name][rank] for name in _KERNEL_PHASES], axis=1)[:, phase]
    length = np.stack(
        [(timeline.end_ns[name] - timeline.begin_ns[name])[rank] for name in _KERNEL_PHASES], axis=1
    )[:, phase]
    start = (begin + length * place // room).ravel()
    busy = (random.uniform(0.5, 0.95, count) * (length // room).ravel()).astype(np.int64)
    kind = random.integers(0, len(_KERNEL_KINDS), count)
    return {
        "device": _names((device,), np.zeros(count, np.int64)),
        "start_ns": start,
        "end_ns": start + busy,
        "correlation": np.arange(count),
        "launch_ns": start - 30_000,
        "step": np.repeat(np.arange(plan.steps), plan.kernels_per_step),
        "phase": _names(tuple(_KERNEL_PHASES), np.tile(phase, plan.steps)),
        **_kind_columns(kind),
    }


def _kernel_slots(count: int) -> tuple[Ints, Ints, Ints]:
    """For each kernel of a step: its phase, its place there, and how many places the phase has."""
    borders = np.round(np.cumsum([0.0, *_KERNEL_PHASES.values()]) * count).astype(np.int64)
    phase = np.repeat(np.arange(len(_KERNEL_PHASES)), np.diff(borders))
    return phase, np.arange(count) - borders[phase], np.diff(borders)[phase]


def _kind_columns(kind: Ints) -> dict[str, Any]:
    of_kind = dict(zip(_KernelKind._fields, zip(*_KERNEL_KINDS, strict=True), strict=True))
    flops = np.array(of_kind["flops"])[kind]
    return {
        **{name: _names(of_kind[name], kind) for name in ("name", "category", "op")},
        **{
            name: np.array(of_kind[name])[kind]
            for name in ("stream", "registers", "shared_bytes", "bytes")
        },
        "grid": _triples(np.array(of_kind["blocks"])[kind]),
        "block": _triples(np.array(of_kind["threads"])[kind]),
        "flops": _nullable(flops, flops > 0),
        "tensor_core": pa.array(of_kind["tensor_core"]).take(_array(kind)),
    }


def _triples(first: Ints) -> pa.Array:
    """Extents `(first, 1, 1)`, null where `first` is 0."""
    extents = np.stack([first, np.ones_like(first), np.ones_like(first)], axis=1).astype(np.int32)
    absent = pa.Array.from_buffers(
        pa.bool_(), len(first), [None, pa.py_buffer(np.packbits(first == 0, bitorder="little"))]
    )
    return pa.FixedSizeListArray.from_arrays(_array(extents.ravel()), 3, mask=absent)


def _samples(timeline: _Timeline, rank: int) -> dict[str, Any]:
    """profkit's own cost, as a real run holds it: the price of a span, and the writer's processor time."""
    begin, end = int(timeline.step_begin_ns[rank, 0]), int(timeline.step_end_ns[rank, -1])
    ticks = np.arange(
        begin + WRITER_SAMPLE_NS, max(end, begin + WRITER_SAMPLE_NS) + 1, WRITER_SAMPLE_NS
    )
    which = np.minimum(np.arange(len(ticks) + 1), 1)
    return {
        "source": _names(("profkit",), np.zeros(len(which), np.int64)),
        "metric": _names(("span_cost_ns", "writer_cpu_ns"), which),
        "time_ns": np.concatenate([[begin], ticks]),
        "value": np.concatenate([[450.0], 120_000.0 * np.arange(1, len(ticks) + 1)]),
    }


def _names(values: Sequence[str], which: Ints) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(
        _array(which.astype(np.int32)), pa.array(values, pa.string())
    )


def _array(values: npt.NDArray[Any]) -> pa.Array:
    return _nullable(values, None)


def _nullable(values: npt.NDArray[Any], known: npt.NDArray[np.bool_] | None) -> pa.Array:
    """An Arrow array that is null where `known` is false."""
    mask = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype),
        len(values),
        [mask, pa.py_buffer(np.ascontiguousarray(values))],
    )
