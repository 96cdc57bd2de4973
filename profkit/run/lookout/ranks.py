"""Look at the processes of the other ranks on this host."""

from __future__ import annotations

from pathlib import Path

from profkit.hangs.processes import ENDED_STATES, STOPPED, is_visible, look_at
from profkit.hangs.status import Status, plain_host, read_statuses


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
