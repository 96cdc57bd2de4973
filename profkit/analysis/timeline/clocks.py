"""Brings the clocks of a run's ranks to a common one."""

from __future__ import annotations

from profkit.trace import Trace

SAME_CLOCK = "one host, one clock"
TIME_OF_DAY = "ranks' clocks aligned by the time of day"
OWN_CLOCKS = "ranks' clocks are not aligned"


def align_clocks(trace: Trace) -> tuple[dict[int, int], str]:
    """Return what to add to each rank's clock, and how that is known.

    Processes of one host share its clock.
    """
    manifests = {rank.rank: rank.manifest for rank in trace.ranks}
    hosts = {manifest.host for manifest in manifests.values()}
    shifts = dict.fromkeys(manifests, 0)
    if len(hosts) <= 1:
        return shifts, SAME_CLOCK
    if any(manifest.anchor.realtime_ns <= 0 for manifest in manifests.values()):
        return shifts, OWN_CLOCKS
    for rank, manifest in manifests.items():
        shifts[rank] = manifest.anchor.realtime_ns - manifest.anchor.monotonic_ns
    return shifts, TIME_OF_DAY
