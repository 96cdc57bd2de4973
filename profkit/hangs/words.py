"""Say a verdict in sentences, and as JSON."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from profkit.hangs.activity import LOCK_CALL, Activity, Doing, find_writer
from profkit.hangs.classes import HangClass, Level
from profkit.hangs.evidence import shown_name
from profkit.hangs.processes import ENDED_STATES, STOPPED
from profkit.hangs.status import ENDED, FAILED, RUNNING, Call, Status, Worker, own_frame
from profkit.hangs.verdict import Verdict
from profkit.hangs.waits import list_ranks, say_ranks
from profkit.text import byte_size, duration, safe_text
from profkit.vocab import OWN_CODE

STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a disk or the network",
    "I": "idles",
}
"""The letters of `/proc` for a thread that exists and is not stopped."""

MOST_RANKS = 4
"""So many of the ranks that hold up the job are described; the others may do something else."""

LONG_WORDS = {
    HangClass.EVALUATION: "evaluates",
    HangClass.ALL_EVALUATE: "evaluates",
    HangClass.COMPILE: "compiles",
    HangClass.ALL_COMPILE: "compiles",
    HangClass.CHECKPOINT: "reads or writes a checkpoint",
}


def say_verdict(verdict: Verdict) -> str:
    """Return who waits for whom, in one sentence with parts."""
    parts: list[str] = []
    waiting = verdict.waiting
    s = "s" if len(waiting) == 1 else ""
    if verdict.kind is HangClass.MISMATCH or (verdict.entered and not waiting):
        parts += say_difference(verdict)
    elif verdict.kind is HangClass.NONE_LEFT and verdict.ranks:
        parts += say_none_left(verdict)
    elif waiting and verdict.kind is HangClass.STORE and not verdict.waits.open:
        where = sorted({verdict.activities[rank].function for rank in waiting})
        parts.append(f"{say_ranks(waiting)} wait{s} in {', '.join(where)} for the other ranks")
    else:
        parts += say_waiting(verdict, waiting)
    parts += say_culprits(verdict)
    return safe_text("; ".join(parts))


def say_culprits(verdict: Verdict) -> Iterator[str]:
    """Say what the ranks that hold up the job do, and which ranks died as they waited."""
    for rank in verdict.waiting:
        status = verdict.evidence.ranks[rank]
        if status.state == FAILED:
            yield f"rank {rank} gave up: {safe_text(status.error)}"
    for rank in filter(verdict.evidence.is_dead, verdict.waiting):
        end = say_end(verdict.evidence.ranks[rank], verdict.evidence.exit_codes.get(rank))
        yield f"rank {rank} {end} while it waited"
    if verdict.kind in {HangClass.MISMATCH, HangClass.NONE_LEFT}:
        return
    seen = [rank for rank in verdict.ranks if rank in verdict.evidence.ranks]
    unseen = set(verdict.ranks).difference(seen)
    for rank in seen[:MOST_RANKS]:
        yield say_rank(verdict, rank)
    if len(seen) > MOST_RANKS:
        s = "s" if len(seen) == MOST_RANKS + 1 else ""
        yield f"{say_ranks(seen[MOST_RANKS:])} hold{s} up the job, too"
    yield from say_ended_before(verdict)
    if unseen:
        yield f"{say_ranks(unseen)} {'has' if len(unseen) == 1 else 'have'} left no status"
    if verdict.evidence.crashed:
        yield from say_failed(verdict)


def say_ended_before(verdict: Verdict) -> Iterator[str]:
    """Say which ranks had ended without an error before one failed: they may be its reason."""
    ranks = verdict.evidence.ranks
    known = ranks.keys() & set(verdict.ranks)
    failed = [ranks[rank].written_ns for rank in known if ranks[rank].state == FAILED]
    by_steps: dict[int, list[int]] = {}
    for rank, status in ranks.items():
        if failed and status.state == ENDED and status.written_ns < min(failed):
            by_steps.setdefault(status.steps, []).append(rank)
    for steps, ended in by_steps.items():
        yield f"{say_ranks(ended)} had ended before, after {steps:,} steps"


def say_failed(verdict: Verdict) -> Iterator[str]:
    """Say how the first of the other ranks failed, as a rank crashed."""
    for rank, status in verdict.evidence.ranks.items():
        if status.state == FAILED and rank not in {*verdict.ranks, *verdict.waiting}:
            yield say_rank(verdict, rank)
            break


def say_exchange(activity: Activity) -> str:
    if activity.doing is Doing.COLLECTIVE:
        return f", in {safe_text(activity.function)}"
    return ""


def say_rank(verdict: Verdict, rank: int) -> str:
    """Say what a rank that holds up the job does, and where."""
    status = verdict.evidence.ranks[rank]
    who = f"rank {rank}"
    where = f" at step {status.steps:,}" if status.steps else " before its first step ended"
    if status.state == FAILED:
        return f"{who} ended with {safe_text(status.error)}{_place(verdict, rank, ' at ')}{where}"
    end = say_end_of(verdict, rank)
    if end:
        return f"{who} {end}, last seen{where}{say_last_place(verdict, rank)}"
    if status.state != RUNNING:
        return f"{who} has ended, after {status.steps:,} steps"
    activity = verdict.activities[rank]
    if verdict.kind is HangClass.STORE:
        is_late = verdict.waiting and not verdict.waits.open
        verb = "has not joined them" if is_late else f"waits in {activity.function}"
        verb = say_absence(verdict, rank) or verb
    elif activity.evaluates and verdict.kind is HangClass.EVALUATION:
        verb = "evaluates"
    elif verdict.kind in LONG_WORDS:
        verb = LONG_WORDS[verdict.kind]
    else:
        verb = say_absence(verdict, rank) or "stands"
    details = [_place(verdict, rank, ""), *say_thread(status, activity)]
    if rank in verdict.evidence.unheard:
        details.append("and has written nothing since")
    said = list(filter(None, details))
    if not said:
        return f"{who} {verb}"
    return f"{who} {verb}: {', '.join(said)}{say_workers(status, activity)}"


def say_end_of(verdict: Verdict, rank: int) -> str:
    """Return how a rank died, or that it is stopped or silent; empty if it runs."""
    evidence, status = verdict.evidence, verdict.evidence.ranks[rank]
    if evidence.is_dead(rank):
        place = ""
        if rank in evidence.crashed:
            place = _place(verdict, rank, " at ") + say_exchange(verdict.activities[rank])
        return say_end(status, evidence.exit_codes.get(rank)) + place
    if evidence.is_stopped(rank):
        return f"is stopped (state T, process {status.pid})"
    if rank in evidence.unheard and verdict.kind is HangClass.UNCLEAR:
        return "has fallen silent"
    return ""


def _place(verdict: Verdict, rank: int, before: str) -> str:
    """Return where a rank is in the job's code, or in a worker of its loader."""
    status, activity = verdict.evidence.ranks[rank], verdict.activities[rank]
    if activity.doing is Doing.DATA:
        for worker in status.workers:
            inside = own_frame(worker.stack, OWN_CODE)
            if inside is not None:
                return f"{before}{shown_name(inside)} in {safe_text(worker.name)}"
    place = activity.place or (status.stack[0] if status.stack else None)
    if place is not None:
        return f"{before}{shown_name(place)}"
    return ""


def say_end(status: Status | Worker, code: int | None) -> str:
    """Return how a process ended: its exit code or signal, if somebody saw it."""
    if code is None:
        return f"is dead: its process {status.pid} is gone"
    if code > 0:
        return f"ended with exit code {code} (process {status.pid})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name} (process {status.pid})"


def say_last_place(verdict: Verdict, rank: int) -> str:
    place = own_frame(verdict.evidence.ranks[rank].stack, OWN_CODE)
    if place is not None and rank not in verdict.evidence.crashed:
        return f", at {shown_name(place)}"
    return ""


def say_doing(status: Status, activity: Activity) -> str:
    """Return what a thread does, by its stack or by its device; empty for code of the job."""
    if activity.is_behind:
        behind = duration((status.device_behind_s or 0.0) * 1e9)
        return f"its device is still at work that was launched more than {behind} ago"
    if activity.doing is Doing.DATA:
        return "waits for data"
    if activity.doing is Doing.DEVICE:
        return f"waits for the device in {safe_text(activity.function)}"
    if activity.doing in {Doing.COLLECTIVE, Doing.MEETING}:
        return f"in {safe_text(activity.function)}"
    if activity.doing in {Doing.BACKWARD, Doing.OPTIMIZER, Doing.FORWARD}:
        return f"in the {activity.doing.value}"
    return ""


def say_thread(status: Status, activity: Activity) -> Iterator[str]:
    yield say_doing(status, activity)
    if status.thread_state in STATES:
        yield f"state {status.thread_state} ({STATES[status.thread_state]})"
    if status.loaders_over and activity.doing is Doing.CODE:
        yield "after the last batch of its loader"
    if status.reads and status.system_call:
        yield f"{status.system_call} on {safe_text(status.reads)}"
    waits = status.system_call == LOCK_CALL
    if waits and activity.doing in {Doing.CODE, Doing.CHECKPOINT}:
        places = [own_frame(stack, OWN_CODE) for stack in status.other_stacks]
        shown = [shown_name(place) for place in places if place is not None]
        if shown:
            yield f"waits for a lock or a thread; another thread of it is at {shown[0]}"
        elif writes := find_writer(itertools.chain(*status.other_stacks)):
            yield f"waits for a lock or a thread; another thread of it is in {safe_text(writes)}"


def say_workers(status: Status, activity: Activity) -> str:
    """Name the processes of the rank that are stopped, that failed, or that its loader lost."""
    words = []
    for number, worker in enumerate(status.workers):
        who = f"its worker {number} ({safe_text(worker.name)})"
        if worker.state in STOPPED:
            words.append(f"{who} is stopped")
        elif worker.state in ENDED_STATES and worker.exit_code:
            words.append(f"{who} {say_end(worker, worker.exit_code)}")
        elif worker.state in ENDED_STATES and activity.doing is Doing.DATA:
            words.append(f"{who} is dead")
    return "".join(f"; {word}" for word in words)


def say_level(verdict: Verdict) -> str:
    """Return how sure it is that the job stands still."""
    stood = duration(verdict.stood_s * 1e9)
    if verdict.level is Level.NOTICE:
        return f"no step for {stood}, which may be as it should: {verdict.kind.value}"
    return f"the job stands still, no step for {stood}: {verdict.kind.value}"


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON, with the unit in each key."""
    places = {}
    shown = {*verdict.ranks, *verdict.waiting}
    for rank, status in verdict.evidence.ranks.items():
        if status.state == FAILED:
            shown.add(rank)
    for rank in sorted(shown):
        found = verdict.activities[rank].place if rank in verdict.activities else None
        own = verdict.evidence.ranks.get(rank)
        if own is not None and verdict.activities[rank].doing is Doing.DATA:
            for worker in own.workers:
                found = own_frame(worker.stack, OWN_CODE) or found
        if found is not None:
            place = {"file": found.file, "line": found.line, "function": found.function}
            places[str(rank)] = place
    call = verdict.call
    return {
        "class": verdict.kind.value,
        "level": verdict.level.value,
        "ranks": list(verdict.ranks),
        "waiting": list(verdict.waiting),
        "stood_s": verdict.stood_s,
        "text": say_verdict(verdict),
        "collective": None
        if call is None
        else {
            "communicator": call.group,
            "sequence": call.sequence,
            "op": call.called or call.op,
            "bytes": call.bytes,
            "dtype": call.dtype,
            "bucket": call.bucket,
        },
        "places": places,
        "missing": list(verdict.missing),
    }


# Say in which collectives and messages ranks are, and who is missing from them.
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
