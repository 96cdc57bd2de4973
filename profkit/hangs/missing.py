"""Say what would have to be known of a standstill for a surer verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profkit.hangs.activity import Activity, Doing
from profkit.hangs.evidence import Evidence
from profkit.hangs.processes import ENDED_STATES, STOPPED
from profkit.hangs.status import RUNNING
from profkit.hangs.waits import Waits, say_ranks


def list_missing(
    evidence: Evidence,
    activities: Mapping[int, Activity],
    waits: Waits,
    culprits: tuple[int, ...],
    *,
    is_meeting: bool,
) -> Iterator[str]:
    """Yield each thing; ranks that meet in a store have no collectives yet."""
    yield from evidence.damaged
    if evidence.missing:
        who = say_ranks(evidence.missing)
        yield f"{who}: no status file; collect the folders of all hosts"
    for rank in sorted(evidence.unheard):
        state = evidence.states.get(rank, "?")
        if state not in ENDED_STATES and state not in STOPPED:
            yield f"rank {rank}: nothing since it fell silent; its host was not seen from outside"
    unknown = [rank for rank, status in evidence.ranks.items() if not status.calls_from]
    if len(evidence.ranks) > 1 and unknown and not is_meeting and not waits.open:
        yield f"{say_ranks(unknown)}: no list of collectives"
    for rank in culprits:
        status = evidence.ranks.get(rank)
        if status is not None and status.state == RUNNING and not status.stack:
            yield f"rank {rank}: no stack"
    for rank in sorted(evidence.crashed):
        if activities[rank].doing is Doing.COLLECTIVE:
            yield (
                f"rank {rank}: what it sent and why the signal came; a library may abort a rank "
                "that gets a message of another size or type: see the job's own output"
            )
