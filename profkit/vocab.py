"""Names that files and screens share. A writer and its readers take each from here."""

from __future__ import annotations

from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = (2, 2)
"""Version of the trace contract. Another major is refused, a newer minor is read.

A new column or table raises the minor version.
"""

MODEL_DIMENSIONS: Final = frozenset(
    ["tp", "tensor", "pp", "pipe", "pipeline", "stage", "cp", "context", "sp", "sequence", "seq"]
)
"""Words in the name of a device mesh's dimension whose ranks share their samples."""

ROOT_MODULE: Final = "(root)"
"""The module of FSDP that holds all others; torch gives it no name."""

REPEATS: Final = "repeats"
"""Key of a run's configuration: the group of repeats that it belongs to, and its number."""

PROBES: Final = "machine_probes"
"""Key of a run's configuration: the speed of its machine before and after the job."""

DOMAIN: Final = "profkit"
"""NVTX domain of every range that profkit opens."""


class Phase(str, Enum):
    """Kind of work in a part of a step; the values are written to the `spans` table."""

    DATA = "data"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    ALLREDUCE = "allreduce"
    OPTIMIZER = "optimizer"
    COMPILE = "compile"
    OTHER = "other"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS: Final = {
    Phase.DATA: "waiting for data",
    Phase.H2D: "copying the batch to the device",
    Phase.FORWARD: "the model and its loss",
    Phase.BACKWARD: "gradients",
    Phase.ALLREDUCE: "exchange between ranks, not hidden",
    Phase.OPTIMIZER: "weight update and gradient reset",
    Phase.COMPILE: "a compiler of the framework works",
    Phase.OTHER: "evaluation, checkpoints, logging",
}

OTHER_OF_PIPELINE: Final = f"the pipeline's schedule, {Phase.OTHER.meaning}"
"""The meaning of `Phase.OTHER` in a job with a pipeline."""

PHASES: Final = tuple(phase.value for phase in Phase)


FASTER_PHASES: Final = tuple(
    phase for phase in PHASES if phase not in {Phase.COMPILE.value, Phase.OTHER.value}
)
"""The phases of which `profkit whatif --faster` answers what a faster one would give."""


class RunState(str, Enum):
    """State of a run in `run.json`."""

    RUNNING = "running"
    COMPLETE = "complete"
    ABORTED = "aborted"


class Integrity(str, Enum):
    """State of a trace as `profkit verify` reports it."""

    COMPLETE = "complete"
    RUNNING = "running"
    ENDED_EARLY = "ended early"
    TORN = "torn"

    @property
    def severity(self) -> int:
        return list(Integrity).index(self)


KERNELS: Final = "kernels"
"""Source of the samples about windows of steps in which kernels were captured."""

WINDOW_STEP: Final = "window_step_index"
"""Metric that marks a step as unfit for timing: kernels were captured or read in it."""

WINDOW_BORDER: Final = "window_border_ns"
"""Metric: time that opening or closing a capture window blocked the loop."""

HOST_SYNC: Final = "host_sync_ns"
"""Metric: how long the host waited for the device in one call; the time is that of its end."""

DEVICE_IDLE: Final = "device_idle"
"""The part of an imported run's configuration about what the host did while devices were idle."""

UNMEASURED_CALLS: Final = "unmeasured_calls"
"""The part of an imported run's configuration with the collectives of no measured duration."""

WINDOW_READING: Final = "window_reading_ns"
"""Metric: processor time that a thread took to read a capture window."""

OPERATIONS: Final = "operations"
"""Source of the samples about the floating-point operations of a step."""

USEFUL_FLOPS: Final = "useful_flops_"
"""Metrics: operations of forward and backward, each once; a precision follows."""

ALL_FLOPS: Final = "all_flops_"
"""Metrics: operations of a step; a precision follows."""

UNCOUNTED: Final = "uncounted_count"
"""Metric: operators that may have multiplied matrices, and whose operations are not counted."""

MEMORY: Final = "memory"
"""Source of the samples about windows of steps in which a device's allocator was followed."""

MEMORY_STEPS: Final = "memory_steps_count"
"""Metric: the steps of such a window."""

MEMORY_OF_WINDOW: Final = "memory-window"
"""A file of a run with what torch's allocator did in steps; the rank's number follows."""

MEMORY_AT_FAILURE: Final = "memory-failure"
"""A file of a run with what torch's allocator held when an allocation failed, likewise."""

CHANGES: Final = "changes"
"""Source of the samples about captures when the step time has changed."""

CAPTURED_STEP: Final = "captured_step_index"
"""Metric that marks a step as unfit for timing: its stacks were sampled densely."""


class EventKind(str, Enum):
    """Kind of a row of `events`, which says what its `name`, `detail` and `value` are."""

    FAILURE = "failure"
    """A part of profkit failed inside the job, `value` times so far."""
    HANG = "hang"
    """A part of profkit did not answer for `value` ns."""
    UNMEASURED = "unmeasured"
    """A part of the job is not measured."""
    UNTIMED = "untimed"
    """So far `value` device times are missing for one reason, a `MissingTime`."""
    BAD_SAMPLE = "bad_sample"
    """A file of the data set could not be read; the reason is the detail."""
    COMPILED = "compiled"
    """A first compilation took `value` ns; the name is that of the function, or empty."""
    RECOMPILED = "recompiled"
    """Compiling a function again took `value` ns; the detail is the guard that failed."""
    GRAPH_BREAK = "graph_break"
    """The compiler had to divide a function; the name has the reason and the place."""
    OVER_LIMIT = "over_limit"
    """A function has as many variants as its compiler allows, which is the value."""
    NOT_COMPILED = "not_compiled"
    """A function could not be compiled and runs uncompiled; the detail is the reason."""


COMPILATIONS: Final = (EventKind.COMPILED, EventKind.RECOMPILED)
"""The kinds of events that last for `value` ns and end at their time."""

OF_COMPILER: Final = (
    *COMPILATIONS,
    *(EventKind.GRAPH_BREAK, EventKind.OVER_LIMIT, EventKind.NOT_COMPILED),
)
"""The kinds of events of a framework's compiler."""


class MissingTime(str, Enum):
    """The reasons for which a device time can be missing, in the words of the report."""

    NO_EVENTS = "the framework's events hold no time"
    NO_ANCHOR = "no idle stream"  # so the device's clock could not be tied to the host's
    POOL = "all events in use"  # because the device was far behind
    CAPTURE = "a CUDA graph was captured"
    FAILED = "the device answered with an error"
    UNREACHED = "the job ended before the device got there"


COLLECTORS_CPU: Final = "collectors_cpu_ns"
"""Metric: processor time of one collector's thread."""

OPENING_CPU: Final = "opening_cpu_ns"
"""Metric: processor time spent once, before the first rows are on disk."""

FULL_BYTES: Final = 16_000_000
"""A rank's tables are written in full up to this size, then thinned."""

WRITER_CPU: Final = "writer_cpu_ns"
"""Metric: processor time of the writer's thread so far."""

SCRIBE_CPU: Final = "scribe_cpu_ns"
"""Metric: a rank's share of the processor time of the process that writes its rows."""

SPAN_COST: Final = "span_cost_ns"
"""Metric: what recording one span costs in the loop, measured once per process."""

MARK_COST: Final = "mark_cost_ns"
"""Metric: what an event on the device costs the loop, measured once per process."""

QUEUE_DEPTH: Final = "queue_depth_batches"
"""Metric: batches that are ready in the data loader's queue."""

BATCH_ELEMENTS: Final = "batch_elements"
"""Metric: elements of the first tensor of a batch, read where it differs from the one before."""

AUTOCAST: Final = "autocast_ratio"
"""Metric: 1 from when models are called in mixed precision, 0 from when they no longer are."""

WHOLE_STEPS: Final = "whole_steps_count"
"""Metric of a rank whose steps are compiled programs that do not show their phases."""

PATCHED_THREADS: Final = "patched_threads_count"
"""Metric of a rank in which threads of Python are greenlets, those of profkit included."""

THROTTLED: Final = {
    "power_cap": "throttled_by_power_cap_ratio",
    "hardware_slowdown": "throttled_by_hardware_slowdown_ratio",
    "hardware_thermal": "throttled_by_hardware_thermal_ratio",
    "software_thermal": "throttled_by_software_thermal_ratio",
    "power_brake": "throttled_by_power_brake_ratio",
}
"""Metrics of how often each reason throttled a GPU."""

LOST_GPU: Final = "lost_count"
"""Metric of a GPU that no longer answers."""

ZERO_GRAD: Final = "zero_grad"
"""Name of the span in which an optimizer resets gradients. It is no weight update."""

SKIPPED_STEP: Final = "skipped step"
"""Name of the span of an optimizer step that the gradient scaler skipped."""

PIPELINE_MESSAGES: Final = "messages"
"""Name of the span in which a pipeline lists messages and hands them over."""

PIPELINE_BATCHES: Final = "microbatches"
"""Name of the span in which a pipeline divides a batch, or joins what came of its parts."""

PIPELINE_SCHEDULE: Final = "pipeline schedule"
"""Name of the span in which the schedule of a pipeline does neither of these, nor computes."""

EXPOSED: Final = "exposed"
"""Name of the span in which nothing but the exchange went on."""

LOADER_WORKER: Final = "loader worker "
"""Thread name prefix of a data loader's worker. Its number follows."""

LOADER_THREAD: Final = "loader thread"
"""Name under which batches are recorded that a thread of the training process makes."""

OWN_CODE: Final = "job"
PACKAGE_CODE: Final = "package"
PYTHON_CODE: Final = "python"
"""Origins of code: the job's own files, installed packages, and Python with generated code."""

TABLES: Final = (
    *("steps", "spans", "kernels", "collectives", "samples", "events", "stacks", "frames"),
    *("sums", "strings"),
)

ROW_TABLES: Final = TABLES[:-2]
"""The tables that hold rows of the job. `strings` only holds the names that they refer to."""

THINNED_TABLES: Final = ("steps", "spans", "collectives", "samples", "events")
"""The tables of which a long run keeps the recent rows, and a sample of the older ones."""

USED: Final = "used"
"""The kind of the steps in `sums` that figures are about. Others have a reason to be excluded."""

RECENT: Final = "recent"
"""Folder in a rank's folder for the rows of a long run that are not thinned yet."""

RUN_FILE: Final = "run.json"
RANK_FILE: Final = "rank.json"
END_FILE: Final = "end.json"
STREAM_SUFFIX: Final = ".arrows"

EYE: Final = "eye"
"""Folder in a rank's folder for what a process outside of the job wrote of it."""

EYE_CPU: Final = "cpu_ns"
"""The eye's processor time so far, for one rank."""

EYE_TABLES: Final = ("stacks", "frames")
"""Tables that are in that folder if there is one."""


def rank_folder(rank: int) -> str:
    return f"r{rank:05d}"
