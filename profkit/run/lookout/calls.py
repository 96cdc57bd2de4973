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

READS = 2
"""Lists are read so often with the same numbers, and then no more."""


class CallReader:
    """Reads the calls that this rank has entered, from the framework's lists if it has any.

    No Python code runs while a list of 2,000 calls is made and read, for about 40 ms. The lists are
    therefore read only if the numbers of the last calls have changed. Numbers and lists do not
    change at the same moment, so each state is read twice.
    """

    def __init__(self) -> None:
        self._numbers: tuple[str, ...] = ()
        self._reads = 0
        """How often the lists were read with these numbers."""
        self._listed: list[Call] = []

    def read(self, framework: Framework | None, recorder: Recorder) -> tuple[tuple[Call, ...], str]:
        """Return the calls of this rank and their source.

        Gloo's list has no messages, so that those come from profkit's own record.
        """
        noted = guarded("collectives in flight", calls_in_flight, [])(recorder)
        calls = guarded("flight recorder", self._read_lists, [])(framework)
        if not calls:
            return cut_calls(noted), "profkit's own record" if noted else ""
        calls = name_open_calls(calls, noted)
        if not any(call.is_message for call in calls):
            calls += [call for call in noted if call.is_message]
            calls.sort(key=lambda call: call.since_ns)
        return cut_calls(calls), "the flight recorder"

    def _read_lists(self, framework: Framework | None) -> list[Call]:
        if framework is None:
            return []
        numbers = framework.dump_flight(with_calls=False)
        if numbers != self._numbers:
            self._numbers, self._reads = numbers, 0
        has_messages = any(call.is_message for call in self._listed)  # they change no number
        if self._reads < READS or has_messages:
            self._reads += 1
            self._listed = list_calls(framework.dump_flight())
        return self._listed


def list_calls(dumps: Sequence[str]) -> list[Call]:
    """Return the calls of all lists, in the order in which they began.

    A group of torch may have NCCL and gloo, which count their calls apart.
    """
    calls: list[Call] = []
    for number, dump in enumerate(dumps):
        for call in calls_of_dump(json.loads(dump)):
            group = f"{call.group} (not NCCL)" if number else call.group
            calls.append(dataclasses.replace(call, group=group))
    if len(dumps) > 1:
        calls.sort(key=lambda call: call.since_ns)
    return calls


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
