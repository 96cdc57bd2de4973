"""Takes evaluations and checkpoints out of the figures of the lines that include them.

Some tools measure a window from line to line, so that an evaluation or a checkpoint between two
lines is in the time of the later one, and often in its wait for data.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from bisect import bisect_right
from collections.abc import Sequence

from profkit.importers.logs.parsed import MAD_TO_DEVIATION, Mean, Record

_LONGER_STEP = 1.2
"""An evaluation that is included makes a step longer than this many usual ones."""
_LEAST_LONGER, _SPREADS = 1.05, 5.0
"""In an even log this many usual ones are enough, if they are as many robust deviations away."""
_LONGER_WAIT = 2.0
"""An evaluation that is included makes a wait for data longer than this many usual ones."""
_NOTICEABLE_WAIT = 0.1
"""A wait for data counts as longer only by this share of a step."""
_MORE_OFTEN = 3.0
"""Windows after an evaluation must be long this much more often than others.

Otherwise they are long for another reason, such as the start of an epoch.
"""


def part_evaluations(
    records: Sequence[Record], evaluation_lines: Sequence[int], times: Mean
) -> list[Record]:
    """Return the records with the time of an evaluation as `other_s` and not as `data_s`.

    It is what their wait and the rest of their step take longer than usual, because no log states
    the time of the evaluation itself.
    """
    waits = [each.data_s for each in records if each.data_s is not None]
    steps = [each.step_s for each in records if each.step_s is not None]
    if times is Mean.STEP or not evaluation_lines or not steps:
        return list(records)
    usual_wait_s, usual_step_s = statistics.median(waits or [0.0]), statistics.median(steps)
    # One limit for all logs would find the same checkpoint in one of two runs and not in the other.
    spread_s = MAD_TO_DEVIATION * statistics.median(abs(each - usual_step_s) for each in steps)
    longest_s = max(_LEAST_LONGER * usual_step_s, usual_step_s + _SPREADS * spread_s)
    longest_s = min(_LONGER_STEP * usual_step_s, longest_s)
    lines = sorted(evaluation_lines)
    follows, longer = {records[0].line: False}, {}
    for before, record in itertools.pairwise(records):
        place = bisect_right(lines, before.line)
        follows[record.line] = place < len(lines) and lines[place] < record.line
    for record in records:
        wait_s, step_s = record.data_s or 0.0, record.step_s or 0.0
        is_wait = wait_s - usual_wait_s > _NOTICEABLE_WAIT * usual_step_s
        is_wait = is_wait and wait_s > _LONGER_WAIT * usual_wait_s
        longer[record.line] = is_wait or step_s > longest_s
    after: list[bool] = []
    others: list[bool] = []
    for line, is_after in follows.items():
        (after if is_after else others).append(longer[line])
    others = others[1:]  # the first line follows no other
    if not any(after) or sum(after) * len(others) < _MORE_OFTEN * sum(others) * len(after):
        return list(records)
    parted = []
    for record in records:
        contains_one = follows[record.line] and longer[record.line] and record.step_s is not None
        parted.append(_part(record, usual_wait_s, usual_step_s) if contains_one else record)
    return parted


def _part(record: Record, usual_wait_s: float, usual_step_s: float) -> Record:
    """Return the record of a window that contains an evaluation."""
    wait_s, step_s = record.data_s, record.step_s or 0.0
    other_s = max(0.0, step_s - (wait_s or 0.0) - (usual_step_s - usual_wait_s))
    if wait_s is not None and wait_s > usual_wait_s:
        other_s += wait_s - usual_wait_s
        wait_s = usual_wait_s
    return dataclasses.replace(record, data_s=wait_s, other_s=other_s or None)
