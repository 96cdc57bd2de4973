"""What the figures of a run cover, and the words for runs imported from a training log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from profkit.analysis.overview import Overview
from profkit.frame.estimate import scale
from profkit.frame.notices import others_in_log
from profkit.frame.phases import UNKNOWN
from profkit.text import plural, significant
from profkit.trace.sharing import AT_LEAST
from profkit.vocab import Phase

MOST_STATED = 4
"""Results stated by an imported log that are shown, and timers; all of them are in the JSON."""
STATED_DIGITS = 6
"""Significant digits of such a result; some logs print sixteen."""

_NAMED_FIELDS = {
    "world_size": "the number of ranks",
    "precision": "precision",
    "batch_size": "batch size",
    "global_batch_size": "batch size",
}


def sample_unit(config: Mapping[str, Any]) -> str:
    """Return the plural of a run's sample, as its log names it."""
    unit = config.get("sample_unit")
    return unit if isinstance(unit, str) and unit.isalpha() else "samples"


def is_log(config: Mapping[str, Any]) -> bool:
    return "log_of" in config


def log_meanings(config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what the phases of a log's run are, which differ from measured ones."""
    if not is_log(config):
        return {}
    return {
        Phase.DATA.value: "waiting for data; the device may work meanwhile",
        Phase.OTHER.value: "evaluation and checkpoints, estimated",
        UNKNOWN: "all that the log does not divide",
    }


def log_quality(view: Overview) -> Iterator[str]:
    """Yield what a log does not hold, or nothing for other runs."""
    if not is_log(view.config):
        return
    if view.world_size > 1:
        yield others_in_log(view.config, view.world_size - 1)
    elif not view.quality:
        yield "all lines about training were read" if not view.flags else "see the flags"


def own_figure(view: Overview) -> Iterator[tuple[str, str, str]]:
    """Yield the throughput of one rank, if a log of several ranks is of one."""
    if not is_log(view.config) or view.world_size < 2 or not view.samples_known:
        return
    if AT_LEAST in view.config:
        return
    per_rank = scale(view.throughput, 1 / view.world_size)
    counted = "the log counts all ranks"
    if view.config.get("samples_counted_of") == "one card":
        counted = "the log counts this rank alone"
    unit = sample_unit(view.config)
    yield "of one rank", f"{significant(per_rank.value, 4)} {unit}/s", counted


def coverage(view: Overview) -> str:
    """Return the ranks that a throughput covers; empty if these are all, except for logs."""
    config = view.config
    if not view.samples_known:
        return ""
    if view.silent_ranks:
        seen = view.world_size - view.silent_ranks
        return f"of {seen:,} of {plural(view.world_size, 'rank')}"
    if not is_log(config):
        return ""
    if "rows_speak_for_ranks" not in config:
        return "of one rank: the log does not say of how many"
    if at_least := config.get(AT_LEAST):
        return f"of all {at_least} or more ranks"
    return f"of all {plural(view.world_size, 'rank')}" if view.world_size > 1 else "of 1 rank"


def source_rows(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Describe the log that a run was imported from, and list the results that it states."""
    if not is_log(config):
        return
    every = ""
    if config.get("steps_per_line") != 1:
        every = f"every {config.get('steps_per_line')} steps, "
    elif one_in := config.get("printed_every"):
        every = f"one step in {one_in} is printed, "
    times = f"{every}times are means of {config.get('step_times')}"
    counted = f"{config.get('sample_unit')} counted for {config.get('samples_counted_of')}"
    yield "log", f"{config['log_of']}: {times}, {counted}"
    accumulated = config.get("accumulation")
    if isinstance(accumulated, int) and accumulated > 1:
        yield "step", f"an update of {accumulated:,} accumulated micro batches"
    if named := _told_by_name(config):
        yield "file name", named
    yield from _stated_rows(config)


def _stated_rows(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List the last results that a log states, and its longest timers, with their lines."""
    stated, timers = [], []
    for found in config.get("stated") or []:
        if isinstance(found, dict) and found.get("is_timer"):
            timers.append(found)
        elif isinstance(found, dict):
            stated.append(found)
    timers.sort(key=_stated_value, reverse=True)
    for found in [*stated[-MOST_STATED:], *timers[:MOST_STATED]]:
        value = found.get("value")
        shown = value
        if isinstance(value, int | float):
            shown = f"{value:,.{STATED_DIGITS}g}" if abs(value) < 1e6 else f"{value:,.0f}"
        result = f"{found.get('what')} {shown} {found.get('unit')}".rstrip()
        if found.get("how"):
            result += f" ({found['how']})"
        yield "stated", f"{result}, line {found.get('line')}"
    left = max(0, len(stated) - MOST_STATED) + max(0, len(timers) - MOST_STATED)
    if left:
        yield "", f"{plural(left, 'more result')} in --json"


def _stated_value(found: Mapping[str, Any]) -> float:
    value = found.get("value")
    if isinstance(value, int | float):
        return float(value)
    return 0.0


def _told_by_name(config: Mapping[str, Any]) -> str:
    """Return which facts come from the file's name, because the log does not state them."""
    names = config.get("told_by_file_name")
    if not isinstance(names, list) or not _NAMED_FIELDS.keys() & set(map(str, names)):
        return ""
    *first, last = dict.fromkeys(_NAMED_FIELDS[name] for name in names if name in _NAMED_FIELDS)
    told = f"{', '.join(first)} and {last}" if first else last
    words = f"states {told}; the log does not"
    of_node = config.get("cards_of_one_node")
    if "world_size" in names and isinstance(of_node, int):
        words += f" (it states {plural(of_node, 'card')} of one node)"
    return words
