"""Differences between two runs: those that a question is about, and all others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from profkit.analysis.config_join import HARMLESS, NOT_SAID, Difference, join_config
from profkit.explain.predict.prediction import AMP, BATCH, DALI, RANKS, WORKERS
from profkit.text import plural, shorten
from profkit.trace import RunManifest, Trace

CHANGES: Mapping[str, frozenset[str]] = {
    WORKERS: frozenset({"workers", "prefetch", "persistent_workers"}),
    BATCH: frozenset({"batch_size", "global_batch_size", "batch_shapes", "batch_elements"}),
    RANKS: frozenset({"world_size", "gpus", "nodes", "global_batch_size"}),
    AMP: frozenset({"precision", "amp"}),
    DALI: frozenset({"loader", "dali", "workers", "prefetch"}),
}
"""Settings that a question changes. A run in which others differ is another job."""

WORK = ("workload", "world_size", "model", "parameters_", "batch_", "global_batch", "precision")
"""Beginnings of the settings that say what a job computes."""

MOST_NAMED, LONGEST_VALUE = 3, 40
"""A reason names so many settings, each with values of at most so many characters."""

_ONLY_BETWEEN_RANKS = re.compile(r"ddp_.*|bucket.*|backend")
"""A job of one rank has none of these settings."""


def other_differences(kind: str, first: RunManifest, later: RunManifest) -> tuple[Difference, ...]:
    """Return what may affect the speed and is not what a kind of question is about."""
    allowed, found = CHANGES.get(kind, frozenset()), []
    for each in join_config(first, later):
        if each.rows in HARMLESS or each.name.startswith("revision.") or each.name in allowed:
            continue
        is_absent = NOT_SAID in {each.base, each.target}
        if kind == RANKS and is_absent and _ONLY_BETWEEN_RANKS.fullmatch(each.name):
            continue
        found.append(each)
    return tuple(found)


def why_other_job(kind: str, first: Trace, later: Trace) -> str:
    """Return why a line through two runs is about no job; empty if they are of one job.

    A command has the setting that was changed among its words, so it may differ.
    """
    named = list[str]()
    devices = _device_kinds(first), _device_kinds(later)
    if devices[0] != devices[1]:
        named.append(f"device ({devices[0]} and {devices[1]})")
    for each in other_differences(kind, first.manifest, later.manifest):
        if each.name != "command":
            values = shorten(each.base, LONGEST_VALUE), shorten(each.target, LONGEST_VALUE)
            named.append(f"{shorten(each.name, LONGEST_VALUE)} ({values[0]} and {values[1]})")
    if not named:
        return ""
    more = ", ..." if len(named) > MOST_NAMED else ""
    shown = ", ".join(named[:MOST_NAMED])
    return f"the two runs differ in {plural(len(named), 'other setting')}: {shown}{more}"


def _device_kinds(trace: Trace) -> str:
    kinds = set()
    for rank in trace.ranks:
        kinds.add(rank.manifest.device.partition(":")[0])
    return ", ".join(sorted(kinds))
