"""Timers that Megatron-LM and DeepSpeed print next to their steps.

Timers overlap and contain each other, so they are never added up. A run keeps the last value of
each of them as a result that the log states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profkit.importers.logs.grammar import Found
from profkit.importers.logs.parsed import Stated
from profkit.importers.logs.text import Line, as_number

MOST_TIMERS = 60
HEADING = "across ranks (ms):"
OUTSIDE_STEPS = ("save-checkpoint", "load-checkpoint", "evaluate", "-setup")
"""Parts of the names of timers that are about no training step."""

_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_ACROSS = re.compile(
    rf"(?:^|\s)([A-Za-z][\w/. -]{{0,60}}?) \.{{2,60}}: (?:\({_NUMBER}, {_NUMBER}\)|{_NUMBER})\s*$"
)
_NAME = re.compile(r"^\s{1,8}([A-Za-z][\w/-]{0,60}):$")
_RANK = re.compile(rf"^\s{{2,12}}rank\s{{1,6}}\d{{1,6}}: {_NUMBER}$")
_LISTED = re.compile(rf"\| ([A-Za-z][\w -]{{0,60}}): {_NUMBER}(?=\s|$)")


def read_timers(line: Line, found: Found) -> None:
    """Take the timers in a line: of all ranks with their range, of each rank, or of one."""
    text = line.text
    if "time (ms) |" in text:
        for name, value in _LISTED.findall(text):
            _keep(line, found, name, [value])
    elif match := _ACROSS.search(text):
        of_all = "timer" in found.memory  # Megatron's `max` prints the slowest rank alone
        _keep(line, found, match[1], filter(None, match.groups()[1:]), of_all=of_all)
    elif HEADING in text:
        found.memory["timer"] = ""
    elif "timer" in found.memory:
        if match := _NAME.match(text):
            found.memory["timer"] = match[1]
            found.memory["timer_values"] = []
        elif (match := _RANK.match(text)) and found.memory["timer"]:
            found.memory["timer_values"].append(match[1])
            _keep(line, found, found.memory["timer"], found.memory["timer_values"])
        else:
            del found.memory["timer"]


def forget_timers(found: Found) -> None:
    """Begin to keep new values, because another run begins."""
    found.memory.pop("timer_places", None)


def _keep(
    line: Line,
    found: Found,
    name: str,
    values: Iterator[str] | list[str],
    *,
    of_all: bool = False,
) -> None:
    """Keep the longest time of a timer, in place of the one from an earlier line."""
    if any(part in name for part in OUTSIDE_STEPS):
        if found.records and "load" not in name:
            found.evaluation_lines.append(line.number)
        return
    times = []
    for time in map(as_number, values):
        if time is not None:
            times.append(time)
    places: dict[str, int] = found.memory.setdefault("timer_places", {})
    if not times or not found.records:
        return
    if name not in places and len(places) >= MOST_TIMERS:
        found.warn(f"a timer beyond the first {MOST_TIMERS}, which is not kept", line.number)
        return
    how = "the last line that has it; timers may contain each other"
    if len(times) > 1:
        how = f"the slowest rank, {min(times):,.10g} the fastest; {how}"
    elif of_all:
        how = f"the slowest rank; {how}"
    stated = Stated(line.number, f"timer {name}", max(times), "ms", how, is_timer=True)
    if name in places:
        found.stated[places[name]] = stated
    else:
        places[name] = len(found.stated)
        found.stated.append(stated)
