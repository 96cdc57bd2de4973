"""A short probe of one core and of memory, next to which runs of one job can be compared.

A virtual machine does not show what its neighbours do, or at which frequency it runs. The probe
runs before and after a job, never next to it.
"""

from __future__ import annotations

import time
from typing import NamedTuple

ROUNDS = 5
"""The fastest round counts: a slower one was interrupted."""

ADDITIONS = 20_000
COPIED_BYTES = 8 << 20
"""More than the cache of a core holds."""


class Probe(NamedTuple):
    """The time of a fixed piece of work, in ns."""

    compute_ns: int
    memory_ns: int


def probe_machine() -> Probe | None:
    """Return how long the machine takes now; `None` if it lacks the memory."""
    try:
        source = bytearray(COPIED_BYTES)
        target = bytearray(COPIED_BYTES)
    except MemoryError:
        return None
    times = []
    for _ in range(ROUNDS):
        began_ns = time.perf_counter_ns()
        total = 0
        for number in range(ADDITIONS):
            total += number
        computed_ns = time.perf_counter_ns()
        target[:] = source
        times.append((computed_ns - began_ns, time.perf_counter_ns() - computed_ns))
    compute_ns = min(compute for compute, _ in times)
    return Probe(compute_ns, min(memory for _, memory in times))
