"""Find the ranks that have written nothing while others did."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from profkit.hangs.status import RUNNING, Status

SILENT_AFTER_S = 6.0
"""A rank is silent if its status is older than the newest one by this, or by half the limit."""


def find_silent(
    folder: Path, ranks: Mapping[int, Status], newest_ns: int, *, is_live: bool
) -> frozenset[int]:
    """Return the silent ranks. While the job runs, the clock of another host proves nothing.

    The files of one folder have the times of one clock, unless they were copied.
    """
    files = {rank: file_time_ns(folder, status) for rank, status in ranks.items()}
    newest_file_ns = max(files.values(), default=0)
    silent = set()
    for rank, status in ranks.items():
        late_ns = max(SILENT_AFTER_S, status.limit_s / 2) * 1e9
        is_late = status.state == RUNNING and newest_ns - status.written_ns > late_ns
        is_far = is_live and status.host != platform.node()
        if is_late and (not is_far or newest_file_ns - files[rank] > late_ns):
            silent.add(rank)
    return frozenset(silent)


def file_time_ns(folder: Path, status: Status) -> int:
    try:
        return (folder / status.file_name).stat().st_mtime_ns
    except OSError:
        return 0
