"""Read the collectives that this rank has entered, and look at the other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from profkit.clock import now_ns, wall_ns
from profkit.hangs.processes import ENDED_STATES, STOPPED, is_visible, look_at
from profkit.hangs.status import Call, Status, plain_host, read_statuses

if TYPE_CHECKING:
    from profkit.instrument.recorder import Recorder


def calls_in_flight(recorder: Recorder) -> list[Call]:
    """Return the collectives that profkit's own hooks have seen a rank enter."""
    offset = wall_ns() - now_ns()
    found: dict[tuple[str, int], Call] = {}
    for log in list(recorder.in_flight):
        for entered in log.entered():
            key = entered.group, entered.sequence
            if key not in found or not found[key].op:
                since_ns = entered.since_ns + offset if entered.since_ns else 0
                found[key] = Call(**{**entered._asdict(), "since_ns": since_ns})
    return sorted(found.values(), key=lambda call: (call.group, call.sequence))


def look_at_peers(folder: Path, own: Status) -> dict[str, str]:
    """Return the states of the other ranks on this host whose processes stopped or ended."""
    states = {}
    for other in read_statuses(folder, plain_host(own.host)):
        if not isinstance(other, Status) or not is_visible(other.host, other.pid_space):
            continue
        look = look_at(other.pid)
        is_same = look.started_ticks == other.started_ticks
        state = look.state if is_same else ""
        if state in STOPPED or state in ENDED_STATES:
            states[str(other.pid)] = state
    return states
