"""Read the collectives and messages that this rank has entered."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from profkit.clock import now_ns, wall_ns
from profkit.hangs.flight import calls_of_dump, cut_calls
from profkit.hangs.status import Call
from profkit.instrument.guard import guarded

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Framework
    from profkit.instrument.recorder import Recorder


def read_calls(framework: Framework | None, recorder: Recorder) -> tuple[tuple[Call, ...], str]:
    """Return the calls of this rank and their source: the framework's own list, if it has one.

    Gloo's list has no messages, so that those come from profkit's own record.
    """
    noted = guarded("collectives in flight", calls_in_flight, [])(recorder)
    calls: list[Call] = []
    if framework is not None:
        dump = guarded("flight recorder", framework.dump_flight, "")()
        if dump:
            calls = calls_of_dump(json.loads(dump))
    if not calls:
        return cut_calls(noted), "profkit's own record" if noted else ""
    calls = name_open_calls(calls, noted)
    if not any(call.is_message for call in calls):
        calls += [call for call in noted if call.is_message]
        calls.sort(key=lambda call: call.since_ns)
    return cut_calls(calls), "the flight recorder"


def name_open_calls(calls: Sequence[Call], noted: Sequence[Call]) -> list[Call]:
    """Name the open calls as the job called them, if exactly one call of the job led to each.

    Gloo has no reduce-scatter: it reduces all, and its list says so.
    """
    named, before = [], dict[tuple[int, ...], int]()
    for call in calls:
        since_ns = before.get(call.members, 0)
        if not call.is_message:
            before[call.members] = call.since_ns
            if not call.done:
                called = _ops_between(noted, call.members, since_ns, call.since_ns)
                if len(called) == 1 and called[0] != call.op:
                    call = dataclasses.replace(call, called=called[0])  # noqa: PLW2901  # the same
        named.append(call)
    return named


def _ops_between(
    noted: Sequence[Call], members: tuple[int, ...], after_ns: int, until_ns: int
) -> list[str]:
    """Return the operations that these ranks were called for in this time."""
    found = []
    for call in noted:
        is_theirs = call.op and call.members == members and not call.is_message
        if is_theirs and after_ns < call.since_ns <= until_ns:
            found.append(call.op)
    return found


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
