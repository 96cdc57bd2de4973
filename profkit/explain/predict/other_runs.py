"""Differences between two runs: those that a question is about, and all others."""

from __future__ import annotations

import re
from collections.abc import Mapping

from profkit.analysis.config_join import HARMLESS, NOT_SAID, Difference, join_config
from profkit.analysis.device_times import device_kinds
from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.analysis.whatif.gradients import is_model_dimension
from profkit.explain.predict.prediction import AMP, BATCH, DALI, RANKS, WORKERS
from profkit.text import plural, shorten
from profkit.trace import RunManifest, Trace
from profkit.trace.sharing import PARALLEL

CHANGES: Mapping[str, frozenset[str]] = {
    WORKERS: frozenset({"workers"}),
    BATCH: frozenset({"batch_size", "global_batch_size", "batch_shapes", "batch_elements"}),
    RANKS: frozenset({"world_size", "gpus", "nodes", "global_batch_size"}),
    AMP: frozenset({"precision", "amp"}),
    DALI: frozenset({"loader", "dali"}),
}
"""Settings that a question changes. A run in which others differ is another job."""

WORK = ("workload", "world_size", "model", "parameters_", "batch_", "global_batch", "precision")
"""Beginnings of the settings that say what a job computes."""

COMMAND = "command"

MOST_NAMED, LONGEST_VALUE = 3, 40
"""A reason names so many settings, each with values of at most so many characters."""

_OFF = frozenset({"", "0", "false", "no", "none", "off"})

_WITHOUT_IT: Mapping[str, re.Pattern[str]] = {
    RANKS: re.compile(r"ddp_.*|bucket.*|backend"),
    WORKERS: re.compile(r"prefetch|persistent_workers"),
    DALI: re.compile(
        r"workers|prefetch|persistent_workers|pin|loader_.*"
        r"|packages\.nvidia-dali.*|variables\.DALI_.*"
    ),
}
"""Settings that one of the two runs cannot have: one rank, no workers, or no `DataLoader`."""


def other_differences(kind: str, first: RunManifest, later: RunManifest) -> tuple[Difference, ...]:
    """Return what may affect the speed and is not what a kind of question is about.

    A command has the setting that was changed among its words, so it may differ.
    """
    allowed, found = CHANGES.get(kind, frozenset()) | {COMMAND}, []
    for each in join_config(first, later):
        if each.rows in HARMLESS or each.name.startswith("revision.") or each.name in allowed:
            continue
        if kind == RANKS and _is_data_dimension(each.name):
            continue
        follows = _WITHOUT_IT.get(kind)
        if follows and NOT_SAID in {each.base, each.target} and follows.fullmatch(each.name):
            continue
        found.append(each)
    return tuple(found)


def _is_data_dimension(name: str) -> bool:
    """Return true for the size of a dimension that grows with ranks, as `parallel.fsdp`."""
    group, _, dimension = name.partition(".")
    return group == PARALLEL and not is_model_dimension(dimension)


def is_mixed(manifest: RunManifest) -> bool:
    """Return true if the settings of a run say that it trains in mixed precision."""
    precision = manifest.config.get("precision")
    if precision:
        return str(precision).lower() not in FULL_PRECISIONS
    return str(manifest.config.get("amp") or "").lower() not in _OFF


def uses_dali(manifest: RunManifest) -> bool:
    """Return true if the settings of a run say that DALI makes its batches."""
    if "dali" in str(manifest.config.get("loader", "")).lower():
        return True
    return str(manifest.config.get("dali") or "").lower() not in _OFF


def why_other_job(kind: str, first: Trace, later: Trace) -> str:
    """Return why a line through two runs is about no job; empty if they are of one job."""
    named = list[str]()
    devices = device_kinds(first), device_kinds(later)
    if devices[0] != devices[1]:
        named.append(f"device ({devices[0]} and {devices[1]})")
    for each in other_differences(kind, first.manifest, later.manifest):
        values = shorten(each.base, LONGEST_VALUE), shorten(each.target, LONGEST_VALUE)
        named.append(f"{shorten(each.name, LONGEST_VALUE)} ({values[0]} and {values[1]})")
    if not named:
        return ""
    more = ", ..." if len(named) > MOST_NAMED else ""
    shown = ", ".join(named[:MOST_NAMED])
    return f"the two runs differ in {plural(len(named), 'other setting')}: {shown}{more}"
