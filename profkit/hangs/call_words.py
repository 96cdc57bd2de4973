"""Say in which collectives and messages ranks are, and who is missing from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from profkit.hangs.evidence import shown_name
from profkit.hangs.status import Call
from profkit.hangs.verdict import Verdict
from profkit.hangs.waits import list_ranks, say_ranks
from profkit.text import byte_size, safe_text

MOST_CALLS_SAID = 4
"""So many calls of waiting ranks are said; in a pipeline, each stage waits in another one."""


def say_call(call: Call, *, with_size: bool = False) -> str:
    """Return a collective in words: `all_reduce #56 (bucket 2)`."""
    words = safe_text(call.called or call.op) or "a collective"
    if call.peer is not None:
        return f"{words} with rank {call.peer}"
    words = f"{words} #{call.sequence}"
    notes = []
    if call.bucket is not None:
        notes.append(f"bucket {call.bucket}")
    if with_size and call.bytes:
        notes.append(f"{byte_size(call.bytes)} {safe_text(call.dtype)}".strip())
    if notes:
        return f"{words} ({', '.join(notes)})"
    return words


def group_calls(calls: Mapping[int, Call], *, with_size: bool = False) -> dict[str, list[int]]:
    """Return the ranks in each call, which names its group if there are several."""
    groups: dict[str, set[tuple[int, ...]]] = {}
    for call in calls.values():
        groups.setdefault(call.group, set()).add(call.members)
    sides: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        words = say_call(call, with_size=with_size)
        if call.peer is None and call.members and len(groups[call.group]) > 1:
            words += f" of ranks {list_ranks(call.members)}"
        elif call.peer is None and len(groups) > 1:
            words += f" of group {safe_text(call.group)}"
        sides.setdefault(words, []).append(rank)
    return sides


def say_difference(verdict: Verdict) -> Iterator[str]:
    """Say which ranks entered which collective."""
    calls = verdict.entered or verdict.waits.open
    for words, ranks in group_calls(calls, with_size=True).items():
        place = ""
        for rank in ranks:
            found = verdict.activities[rank].place
            if found is not None:
                place = f" at {shown_name(found)}"
                break
        yield f"{say_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} in {words}{place}"


def say_waiting(verdict: Verdict, ranks: Iterable[int]) -> Iterator[str]:
    """Say in which calls these ranks wait for others."""
    known, unknown = {}, []
    for rank in ranks:
        call = verdict.waits.open.get(rank)
        if call is not None and call.op:
            known[rank] = call
        else:
            unknown.append(rank)
    sides = list(group_calls(known).items())
    more: list[int] = []
    for _, others in sides[MOST_CALLS_SAID:]:
        more += others
    said = [(waiting, f"in {words}") for words, waiting in sides[:MOST_CALLS_SAID]]
    for waiting, where in (*said, (more, "in other calls"), (unknown, "for other ranks")):
        if waiting:
            yield f"{say_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''} {where}"


def say_none_left(verdict: Verdict) -> Iterator[str]:
    """Say which calls all of their ranks have entered, and who waits in another one."""
    opened = verdict.waits.open
    calls = {rank: opened[rank] for rank in verdict.ranks}
    for words, ranks in group_calls(calls).items():
        if not verdict.waiting:
            verb = "have all" if len(ranks) > 1 else "has"
            yield f"{say_ranks(ranks)} {verb} entered {words}, and none has left it"
        else:
            who = say_members(calls[ranks[0]], verdict.evidence.world_size)
            yield f"{who} have entered {words}, and {say_ranks(ranks)} cannot leave it"
    later = []
    for rank in verdict.waiting:
        own = opened.get(rank)
        for call in calls.values():
            is_same_group = own is not None and (own.group, own.members) == (
                call.group,
                call.members,
            )
            if own is not None and is_same_group and own.sequence > call.sequence:
                later.append(rank)
                break
    if later:
        yield f"{say_ranks(later)} wait{'s' if len(later) == 1 else ''} in a later one"
    yield from say_waiting(verdict, [rank for rank in verdict.waiting if rank not in later])


def say_members(call: Call, world_size: int) -> str:
    if call.is_message:
        return "both ranks"
    if call.members and len(call.members) < world_size:
        return f"all of ranks {list_ranks(call.members)}"
    return "all ranks"


def say_absence(verdict: Verdict, rank: int) -> str:
    """Say which calls of waiting ranks a rank has not entered; empty if that is not known."""
    waits = verdict.waits
    waiting = {other: waits.open[other] for other in verdict.waiting if other in waits.open}
    words = []
    for called, others in group_calls(waiting).items():
        if rank not in waits.missing.get(others[0], ()):
            continue
        is_only = len(others) == len(verdict.waiting)
        if is_only:
            return "has not entered it"
        call = waiting[others[0]]
        words.append(f"the {safe_text(call.op)} of rank {others[0]}" if call.is_message else called)
    if words:
        return f"has not entered {' and '.join(words[:MOST_CALLS_SAID])}"
    return ""
