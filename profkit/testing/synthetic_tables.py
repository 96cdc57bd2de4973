"""Columns of the tables `steps`, `spans`, `collectives` and `samples` of a synthetic run."""

from __future__ import annotations

from typing import Any

import numpy as np

from profkit.importers.reading.columns import constant, flags, names, numbers
from profkit.testing.synthetic_timeline import LOSS_STREAM, Plan, Timeline

DEVICE_LAG_NS = 40_000
"""A phase begins and ends on the device this much later than on the host."""

SAMPLE_BYTES = 602_112
"""The size of a sample that is copied to the device: three channels of 224 by 224 floats."""

BUCKET_BYTES = 26_214_400
"""The size of all buckets but the last, which holds a third: the default of PyTorch, 25 MiB."""

WRITER_SAMPLE_NS = 250_000_000
"""The writer reports its processor time at this interval."""

READING_NS = 1_000_000_000
"""The machine is read at this interval, and at the end."""

CORES = 16
"""The cores of each machine."""

STACK_SAMPLE_NS = 50_000_000
SPAN_COST_NS, WRITER_CPU_NS = 450, 120_000
"""The time to record one span, and the writer's processor time per interval."""


def step_columns(plan: Plan, timeline: Timeline, rank: int) -> dict[str, Any]:
    """Return a rank's steps, with a loss that falls slowly."""
    index = np.arange(plan.steps)
    samples = np.full(plan.steps, plan.batch_size)
    if plan.steps_per_epoch and plan.last_batch_size is not None:
        samples[plan.steps_per_epoch - 1 :: plan.steps_per_epoch] = plan.last_batch_size
    noise = plan.random(rank, LOSS_STREAM).standard_normal(plan.steps)
    return {
        "step": index,
        "start_ns": timeline.step_begin_ns[rank],
        "end_ns": timeline.step_end_ns[rank],
        "sample_count": samples,
        "loss": 0.2 + 2.3 / (1 + index / 40) + 0.02 * noise,
        "instrumented": flags(np.ones(plan.steps, np.bool_)),
        "epoch": index // (plan.steps_per_epoch or plan.steps),
    }


def span_columns(plan: Plan, timeline: Timeline, rank: int) -> dict[str, Any]:
    """Return one row per step and phase, in the order of time."""
    phases = plan.phases
    begin, end = timeline.phase_times(phases, rank)
    count = begin.size
    phase_ids = np.tile(np.arange(len(phases)), plan.steps)
    phase = names(phase_ids, phases)
    phase_names = np.array(phases)[phase_ids]
    on_device = (phase_names != "data") & plan.on_gpu
    return {
        "step": np.repeat(np.arange(plan.steps), len(phases)),
        "phase": phase,
        "name": phase,
        "depth": np.zeros(count, np.int64),
        "thread": constant("MainThread", count),
        "start_ns": begin.ravel(),
        "end_ns": end.ravel(),
        "device_start_ns": numbers(begin.ravel() + DEVICE_LAG_NS, on_device),
        "device_end_ns": numbers(end.ravel() + DEVICE_LAG_NS, on_device),
        "bytes": numbers(np.full(count, plan.batch_size * SAMPLE_BYTES), phase_names == "h2d"),
    }


def collective_columns(plan: Plan, timeline: Timeline, rank: int) -> dict[str, Any]:
    """Return one all-reduce per step and bucket. The backward pass hides all but the last."""
    ready, start, end = timeline.bucket_times(plan.buckets, rank)
    count = ready.size
    bucket = np.tile(np.arange(plan.buckets), plan.steps)
    return {
        "communicator": constant("default_pg", count),
        "sequence": np.arange(count),
        "op": constant("all_reduce", count),
        "bytes": np.where(bucket == plan.buckets - 1, BUCKET_BYTES // 3, BUCKET_BYTES),
        "dtype": constant("float32", count),
        "group_size": np.full(count, plan.ranks),
        "ready_ns": ready.ravel(),
        "start_ns": start.ravel(),
        "end_ns": end.ravel(),
        "backend": constant("nccl" if plan.on_gpu else "gloo", count),
        "step": np.repeat(np.arange(plan.steps), plan.buckets),
        "bucket": bucket,
        "dimension": constant("dp", count),
    }


def sample_columns(
    timeline: Timeline, rank: int, others: float | None, on_host: int
) -> dict[str, Any]:
    """Return profkit's own cost and the load of the machine.

    The cost is first that of a span, then the writer's total processor time. Each of the `on_host`
    ranks uses one core, and other processes use `others`; the first rank of a machine reads it.
    """
    begin = int(timeline.step_begin_ns[rank, 0])
    end = int(timeline.step_end_ns[rank, -1])
    first = begin + WRITER_SAMPLE_NS
    times = np.arange(first, max(end, first) + 1, WRITER_SAMPLE_NS)
    writer_cpu_ns = WRITER_CPU_NS * np.arange(1.0, len(times) + 1)
    readings: list[tuple[str, str, Any, Any]] = [
        ("profkit", "span_cost_ns", np.array([begin]), np.array([float(SPAN_COST_NS)])),
        ("profkit", "writer_cpu_ns", times, writer_cpu_ns),
    ]
    if others is not None:
        read_at = np.append(np.arange(begin, end, READING_NS), end)
        seconds = (read_at - begin) / 1e9
        waited = seconds * (others / CORES) * on_host
        readings.append(("process", "cpu_seconds", read_at, seconds))
        readings.append(("process", "cpu_wait_seconds", read_at, waited / on_host))
        if rank % on_host == 0:
            readings.append(("host", "cpu_busy_seconds", read_at, seconds * (on_host + others)))
    sources, metrics, read_ns, values = zip(*readings, strict=True)
    distinct = sorted(set(sources))
    place = np.repeat(np.arange(len(readings)), list(map(len, read_ns)))
    return {
        "source": names(np.array(list(map(distinct.index, sources)))[place], distinct),
        "metric": names(place, metrics),
        "time_ns": np.concatenate(read_ns),
        "value": np.concatenate(values),
    }


def stack_columns(timeline: Timeline, rank: int) -> dict[str, Any]:
    """Return samples at a fixed interval, in turn on the two inner frames of `frame_columns`."""
    begin, end = int(timeline.step_begin_ns[rank, 0]), int(timeline.step_end_ns[rank, -1])
    times = np.arange(begin, end, STACK_SAMPLE_NS)
    return {
        "time_ns": times,
        "late_ns": np.zeros(len(times), np.int64),
        "every_ns": np.full(len(times), STACK_SAMPLE_NS),
        "thread": constant("MainThread", len(times)),
        "stack": 1 + np.arange(len(times)) % 2,
    }


def frame_columns() -> dict[str, Any]:
    """Return a script that calls a function of its own and one of a package."""
    return {
        "id": [0, 1, 2],
        "parent": [None, 0, 0],
        "file": ["~/job/train.py", "~/job/model.py", "/lib/site-packages/torch/optim.py"],
        "function": ["main", "Net.forward", "SGD.step"],
        "line": [12, 34, 56],
        "origin": ["job", "job", "package"],
    }
