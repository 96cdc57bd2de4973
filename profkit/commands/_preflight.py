"""What a verb says about the machine before it works: one line, or an error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from profkit.errors import UsageError
from profkit.rank import Rank, rank_of


def check_machine(
    frameworks: Sequence[str], *, gpus: int | None, on_cpu: bool, amp: bool, dali: bool
) -> None:
    """Refuse what would fail on the GPUs of this machine, and say what would be slow.

    Without `gpus`, a framework trains on a GPU if it sees one.
    """
    from profkit.machine import preflight

    driver = None if on_cpu else preflight.read_driver()
    is_slow = "torch" in frameworks and amp and preflight.lacks_bf16()
    for framework in frameworks:
        problem = preflight.find_problem(preflight.read_build(framework), driver)
        if problem is not None and (gpus or problem.is_seen):
            raise UsageError(f"{problem}; --ranks 1 trains on the CPU")
        if problem is not None:
            say(f"{problem}; this trains on the CPU")
        elif driver is not None and driver.gpus:
            is_slow = False
    if dali:
        problem = preflight.find_dali_problem(preflight.find_dali(), driver)
        if problem is not None:
            raise UsageError(f"--dali: {problem}")
    if is_slow:
        say(f"this processor has no instructions for bf16: {expected_slowdown()}")


def expected_slowdown() -> str:
    """Return how much slower bf16 is here, if this machine's ceilings are known."""
    from profkit.analysis.kept_ceilings import load_ceilings
    from profkit.environment import read_environment

    known = load_ceilings(read_environment())
    rates = {} if known is None else known.matrix_flops_per_s
    if not rates.get("bf16") or not rates.get("fp32"):
        return "it is emulated, which is slower than fp32; 'profkit ceilings' measures both"
    return f"its products take {rates['fp32'] / rates['bf16']:.1f} times as long as in fp32"


def look_at_job(program: str) -> None:
    """Say what splits a run, and what keeps a job of this environment from the GPUs."""
    from profkit.machine import preflight
    from profkit.run.facts import LIMIT_S, read_within

    say_tasks(rank_of())
    found = shutil.which(program)
    if found is None or Path(found).parent != Path(sys.prefix) / "bin":
        return
    driver = read_within(LIMIT_S, {"driver": preflight.read_driver}).get("driver")
    for framework in ("torch", "paddle"):
        problem = preflight.find_problem(preflight.read_build(framework), driver)
        if problem is not None:
            say(str(problem))


def say_tasks(own: Rank | None) -> None:
    """Say that each task of a launcher records a run of its own; the first one says it."""
    if own is not None and own.world_size > 1 and own.number == 0:
        say(
            f"{own.world_size} tasks of a launcher record a run each; for one run of all ranks, "
            "let profkit start the launcher, as in: profkit run -- srun python train.py"
        )


def say(line: str) -> None:
    print(f"profkit: {line}", file=sys.stderr)
