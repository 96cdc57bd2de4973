"""An injected fault: how it changes a healthy job, and the source of its true cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A pair of jobs that differ in `change`.

    `causes` holds, for each injected fault, the kinds of causes that name it correctly. A healthy
    pair has none.

    `truth` says where the job's own clock has the true cost. `planted` is the injected time per
    step, on the rank with the most. Names of parts mean how much more they take together than in
    the healthy twin, on the mean of the ranks. `step` means the whole step, and `samples` the
    time for as many samples as a step of the healthy twin has. With `all`, steps that begin an
    epoch count as well. `None` is for a fault that wastes steps and makes none of them longer.
    """

    name: str
    causes: tuple[tuple[str, ...], ...]
    change: Mapping[str, Any]
    truth: str | None = "step"
    words: tuple[str, ...] = ()
    """Words, one of which the reported cause must contain in addition to its kind."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Options of both twins."""
    must: str = ""
    """Text that the reported cause must contain as well, such as the rank that is late."""
    ranks: int = 1
    framework: str = "torch"
    kernels: bool = False
    """If true, both twins capture their operators in some steps."""
    needs_gpu: bool = False
    needs_administrator: str = ""
    """A manual preparation on a GPU machine, or one that needs more rights than a job has."""
    job: str = ""
    """The job's module, if it is not the usual one of its framework."""
    noise: str = ""
    """The side next to which other processes compute: `target` or `both`."""
    says: str = ""
    """The true cause in words, written down before the pair was run."""

    @property
    def healthy(self) -> bool:
        return not self.causes


COMPUTE = "forward backward"
"""Phases that an injected operator makes longer; the loader's wait differs between twins anyway."""


def single(kind: str | tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return ((kind,) if isinstance(kind, str) else kind,)


def late(phase: str, *, rank: int = 1, ms: float = 10.0) -> Mapping[str, Any]:
    return {"late_rank": rank, "late_phase": phase, "late_ms": ms}


def healthy(
    name: str,
    base: Mapping[str, Any],
    *,
    ranks: int = 1,
    framework: str = "torch",
    kernels: bool = False,
    job: str = "",
    noise: str = "",
) -> Fault:
    """Return a pair of jobs that differ in their seed only."""
    return Fault(
        f"healthy_{name}",
        (),
        {"seed": 1_000},
        None,
        base=base,
        ranks=ranks,
        framework=framework,
        kernels=kernels,
        job=job,
        noise=noise,
    )


def as_words(fault: Fault) -> str:
    """Return the change as it was written."""
    return (
        ", ".join(f"{name} {value}" for name, value in fault.change.items())
        or fault.needs_administrator
    )
