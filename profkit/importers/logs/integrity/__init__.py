"""Checks of a run's figures against each other, its timestamps and the file's name.

Each check is a function that takes the run and the evidence around it and returns flags: one for
each contradiction, which counts the lines that show it and lists the first few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from profkit.importers.logs.integrity import clock, figures, statements
from profkit.importers.logs.integrity.evidence import Check, Evidence
from profkit.importers.logs.parsed import Flag, ParsedLog, Scope
from profkit.text import significant

MAX_THROUGHPUT_RATIO = 1.2
"""Runs of one configuration do not differ by more than this factor."""

CHECKS: tuple[Check, ...] = (
    clock.check_header_date,
    clock.check_jumps,
    statements.check_precision,
    statements.check_cards,
    statements.check_batch,
    statements.check_command,
    figures.check_throughputs,
    figures.check_evaluations,
    figures.check_data_waits,
    clock.check_step_times,
    figures.check_fast_steps,
    clock.check_long_windows,
    figures.check_slow_steps,
    figures.check_paces,
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
    means = []
    for each in runs:
        throughput = each.mean_throughput
        if throughput is not None and each.scope is Scope.ALL:
            throughput /= each.metadata.world_size or 1
        if throughput:
            means.append(throughput)
    if len(means) < 2 or max(means) <= MAX_THROUGHPUT_RATIO * min(means) or _have_a_reason(runs):
        return list(runs)
    ratio = significant(max(means) / min(means), 3)
    flag = Flag(
        f"the runs in the file differ {ratio} x in throughput per card: "
        "what the file's name says is true for at most one of them"
    )
    return [dataclasses.replace(each, flags=(*each.flags, flag)) for each in runs]


def _have_a_reason(runs: Sequence[ParsedLog]) -> bool:
    """Return true if the log states different settings for the runs: then none is another's."""
    stated = set()
    for each in runs:
        metadata = each.metadata
        own = [metadata.world_size, metadata.batch_size, metadata.precision]
        for place, name in enumerate(("world_size", "batch_size", "precision")):
            if name in metadata.from_name:
                own[place] = None
        stated.add(tuple(own))
    return len(stated) > 1
