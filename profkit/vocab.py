"""The words of profkit: names that stand in files and on screens, each said once."""

from __future__ import annotations

from enum import Enum
from typing import Final

SCHEMA_VERSION: Final = (1, 0)
"""Major and minor of the trace contract. A newer major is refused, a newer minor is read."""

DOMAIN: Final = "profkit"
"""The NVTX domain of every range that profkit opens."""


class Phase(str, Enum):
    """What a part of a step does; the values stand in the `spans` table."""

    DATA = "data"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    ALLREDUCE = "allreduce"
    OPTIMIZER = "optimizer"
    OTHER = "other"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS: Final = {
    Phase.DATA: "waiting for the next batch",
    Phase.H2D: "copying the batch to the device",
    Phase.FORWARD: "the model and its loss",
    Phase.BACKWARD: "gradients",
    Phase.ALLREDUCE: "gradient exchange that nothing hides",
    Phase.OPTIMIZER: "the weight update",
    Phase.OTHER: "evaluation, checkpoints, logging",
}

PHASES: Final = tuple(phase.value for phase in Phase)


class RunState(str, Enum):
    """What `run.json` says of a run."""

    RUNNING = "running"
    COMPLETE = "complete"
    ABORTED = "aborted"


class Integrity(str, Enum):
    """What `profkit verify` finds a trace to be."""

    COMPLETE = "complete"
    RUNNING = "running"
    ENDED_EARLY = "ended early"
    TORN = "torn"

    @property
    def severity(self) -> int:
        return list(Integrity).index(self)


KERNELS: Final = "kernels"
"""The source of the rows about windows of steps in which kernels were captured."""

WINDOW_STEP: Final = "window_step_index"
"""Tells of a step that is no measure of speed: kernels were captured in it, or a capture was read."""

WINDOW_BORDER: Final = "window_border_ns"
"""What a window's opening or closing kept the loop waiting."""

WINDOW_READING: Final = "window_reading_ns"
"""The processor time that a thread took to read a window."""

FAILURES: Final = "failures_count:"
"""How often something of profkit's failed in the job; its name stands behind."""

UNMEASURED: Final = "unmeasured:"
"""Says that something of the job is not measured; its name follows."""

HANGS: Final = "hung_ns:"
"""How long something of profkit's did not answer; its name stands behind."""

COLLECTORS_CPU: Final = "collectors_cpu_ns"
"""The processor time of one collector's thread."""

OPENING_CPU: Final = "opening_cpu_ns"
"""Processor time spent once, before the first rows are on disk: imports, files, first batch."""

WRITER_CPU: Final = "writer_cpu_ns"
"""Processor time of the writer's thread so far."""

WHOLE_STEPS: Final = "whole_steps_count"
"""Tells of a rank whose steps are programs in which nothing shows the phases."""

LOST_GPU: Final = "lost_count"
"""Tells of a GPU that does not answer any more."""

TABLES: Final = ("steps", "spans", "kernels", "collectives", "samples", "strings")

RUN_FILE: Final = "run.json"
RANK_FILE: Final = "rank.json"
END_FILE: Final = "end.json"
STREAM_SUFFIX: Final = ".arrows"


def rank_folder(rank: int) -> str:
    return f"r{rank:05d}"


BAD_TIMES: Final = ("dropped ", "repaired ")
"""How the flags of a run begin that say that times in its source cannot be: no verdict is given on such a run."""
