"""The planted hangs: the class of each, and if its line in the job's code is known.

The class is what is true of the job, written down before the job ran.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BOTH = ("torch", "paddle")


@dataclass(frozen=True)
class Plant:
    """One kind of hang. `classes` holds the verdicts that are right, the usual one first."""

    name: str
    classes: tuple[str, ...]
    site: str = ""
    """The mark of the line at which the culprit stands; empty if it stands at no line."""
    level: str = "alarm"
    everybody: bool = False
    """True if all ranks hold up the job together."""
    goes_on: bool = False
    """True if the job goes on after a while."""
    ends: bool = False
    """True if the job ends by itself, so that the files alone give the verdict."""
    step_s: float = 0.03
    """So long does the job sleep in each step."""


NEVER = ("never entered",)
DATA = ("waiting for data",)
MISMATCH = ("mismatch",)
DEVICE = ("device busy",)
DEAD = ("rank dead",)
EVALUATION = ("only some ranks evaluate",)
STORE = ("waiting for the store or rendezvous",)
PLANTS = (
    Plant("sleep", NEVER, "sleep"),
    Plant("spin", NEVER, "spin"),
    Plant("read", NEVER, "read"),
    Plant("lock", NEVER, "lock"),
    Plant("queue", NEVER, "queue"),
    Plant("native", NEVER, "native"),
    Plant("subprocess", NEVER, "subprocess"),
    Plant("pipe", NEVER, "pipe"),
    Plant("forward", NEVER, "lock"),
    Plant("backward", NEVER, "sleep"),
    Plant("slow_steps", NEVER, "sleep", step_s=1.0),
    Plant("helper", (*NEVER, *DATA), "helper"),
    Plant("deadlock", NEVER, "deadlock"),
    Plant("network", NEVER, "network"),
    Plant("coroutine", NEVER, "coroutine"),
    Plant("file", NEVER, "file"),
    Plant("logging", NEVER, "logging"),
    Plant("subgroup", NEVER, "sleep"),
    Plant("data_inline", DATA, "sample"),
    Plant("data_worker", DATA, "sample"),
    Plant("data_worker_stopped", DATA),
    Plant("data_worker_dead", (*DEAD, *DATA), ends=True),
    Plant("device", DEVICE, "device"),
    Plant("device_everywhere", DEVICE, "device", everybody=True),
    Plant("mismatch_op", MISMATCH, "mismatch_op"),
    Plant("mismatch_order", MISMATCH, "mismatch_order"),
    Plant("mismatch_size", MISMATCH, "mismatch_size", ends=True),
    Plant("mismatch_type", MISMATCH, "mismatch_size", ends=True),
    Plant("groups", MISMATCH, "groups"),
    Plant("uneven", MISMATCH, "uneven"),
    Plant("skipped_call", MISMATCH, "skipped_call"),
    Plant("link", ("all entered, none left",), everybody=True),
    Plant("killed", DEAD, ends=True),
    Plant("exited", DEAD, ends=True),
    Plant("raise", DEAD, "raise", ends=True),
    Plant("crash", DEAD, ends=True),
    Plant("quit", DEAD, ends=True),
    Plant("stopped", ("rank stopped",)),
    Plant("join", STORE, "join"),
    Plant("store", STORE, "store"),
    Plant("new_group", (*STORE, *MISMATCH), "new_group"),
    Plant("receive", MISMATCH, "receive"),
    Plant("evaluate", EVALUATION, "evaluate", level="notice"),
    Plant("evaluate_with_ddp", EVALUATION, "evaluate_with_ddp"),
    Plant("compile", ("compile on one rank",), "compile", level="notice"),
    Plant("checkpoint", ("checkpoint",), "checkpoint", level="notice"),
    Plant("late", ("entered late",), "late", goes_on=True),
)
HEALTHY = Plant("healthy", (), level="", goes_on=True)
BY_NAME = {plant.name: plant for plant in PLANTS}


def lines_of(site: str, framework: str) -> set[tuple[str, int]]:
    """Return the files and lines that are marked with a site; a loop has two."""
    found = set()
    for name in ("hang_sites.py", f"hang_job_{framework}.py", "hang_job.py"):
        for number, line in enumerate((HERE / name).read_text().splitlines(), 1):
            mark = re.search(r"# site: ([\w, ]+)", line)
            if mark and site in re.split(r",\s*", mark[1].strip()):
                found.add((name, number))
    return found
