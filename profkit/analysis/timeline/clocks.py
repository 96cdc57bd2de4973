"""Brings the clocks of a run's ranks to a common one."""

from __future__ import annotations

from profkit.trace import Trace

SAME_CLOCK = "one host, one clock"
TIME_OF_DAY = "ranks' clocks aligned by the time of day"
AS_RECORDED = "hosts are not known: the ranks' times are as recorded"
OWN_CLOCKS = "ranks' clocks are not aligned"


def align_clocks(trace: Trace) -> tuple[dict[int, int], str]:
    """Return what to add to each rank's clock, and how that is known.

    Processes of one host share its clock.
    """
    shifts, hosts, told = {}, set(), True
    for rank in trace.ranks:
        anchor = rank.manifest.anchor
        hosts.add(rank.manifest.host)
        shifts[rank.rank] = anchor.realtime_ns - anchor.monotonic_ns
        told = told and anchor.realtime_ns > 0
    if hosts == {""} and len(shifts) > 1:  # another tool's files, without the names of hosts
        return dict.fromkeys(shifts, 0), AS_RECORDED
    if len(hosts) > 1 and told:
        return shifts, TIME_OF_DAY
    return dict.fromkeys(shifts, 0), OWN_CLOCKS if len(hosts) > 1 else SAME_CLOCK
