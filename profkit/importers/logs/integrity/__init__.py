"""Checks of a run's figures against each other, its timestamps and the file's name.

Each check is a function that takes the run and the evidence around it and returns flags: at most
one, which counts the lines that show the contradiction and lists the first few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from profkit.importers.logs.integrity import clock, figures, statements
from profkit.importers.logs.integrity.evidence import Check, Evidence
from profkit.importers.logs.parsed import Flag, ParsedLog
from profkit.text import significant

MAX_THROUGHPUT_RATIO = 1.2
"""Runs of one configuration do not differ by more than this factor."""

CHECKS: tuple[Check, ...] = (
    clock.check_header_date,
    clock.check_jumps,
    statements.check_precision,
    statements.check_cards,
    statements.check_batch,
    figures.check_throughputs,
    figures.check_evaluations,
    figures.check_data_waits,
    clock.check_step_times,
    figures.check_fast_steps,
    clock.check_long_windows,
    figures.check_slow_steps,
    figures.check_batches,
    figures.check_missing_lines,
    statements.check_last_step,
    clock.check_shared_timestamps,
    statements.check_stated_mean,
    statements.check_stated_throughput,
    statements.check_samples,
    statements.check_record_count,
)


def check(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    """Return the flags of one run, in the order of the checks."""
    flags = []
    for each in CHECKS:
        flags += each(log, evidence)
    return flags


def flag_unlike_runs(runs: Sequence[ParsedLog]) -> list[ParsedLog]:
    """Flag the runs of one file if their throughputs differ too much for one configuration."""
    means = list(filter(None, [each.mean_throughput for each in runs]))
    if len(means) < 2 or max(means) <= MAX_THROUGHPUT_RATIO * min(means):
        return list(runs)
    ratio = significant(max(means) / min(means), 3)
    flag = Flag(
        f"the runs in the file differ {ratio} x in throughput: "
        "what the file's name says is true for at most one of them"
    )
    return [dataclasses.replace(each, flags=(*each.flags, flag)) for each in runs]
