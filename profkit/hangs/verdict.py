"""Decide why a job stands still: the class, the ranks that hold it up, and who waits.

A verdict is a pure function of the evidence. It says less where the evidence says less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from profkit.hangs.activity import Activity, Doing, find_activity
from profkit.hangs.classes import NEVER_LONG, HangClass, Level
from profkit.hangs.evidence import Evidence
from profkit.hangs.long_parts import in_long_part, may_be_heard, may_take_long, show_life
from profkit.hangs.processes import ENDED_STATES, STOPPED
from profkit.hangs.status import RUNNING, Call, plain_host
from profkit.hangs.waits import (
    Waits,
    died_waiting,
    find_apart,
    find_failed,
    find_minority,
    find_waits,
    say_ranks,
    timed_out,
)


@dataclass(frozen=True)
class Verdict:
    """Why a job stands still, for people and programs alike."""

    kind: HangClass
    level: Level
    ranks: tuple[int, ...]
    """The ranks that hold up the job."""
    waiting: tuple[int, ...]
    """The ranks that wait for them."""
    call: Call | None
    """The collective in which they wait."""
    evidence: Evidence
    activities: Mapping[int, Activity]
    waits: Waits
    missing: tuple[str, ...] = ()
    """What would have to be known for a surer verdict."""
    stood_s: float = 0.0
    entered: Mapping[int, Call] = field(default_factory=dict)
    """For a mismatch, the call of each rank."""

    @property
    def excused(self) -> frozenset[int]:
        """The ranks that wait for others, or are in a part that is known to take long."""
        found = set(self.waits.open).difference(self.ranks)
        for rank, activity in self.activities.items():
            if in_long_part(rank, self.evidence, activity):
                found.add(rank)
        return frozenset(found)

    def was_seen_since(self, wall_ns: int) -> bool:
        """Return true if each rank in a collective has looked since then, or cannot look.

        On a busy machine a rank's last look may be from before it left the collective.
        """
        evidence = self.evidence
        for rank in self.waits.open:
            status = evidence.ranks[rank]
            is_gone = evidence.is_dead(rank) or evidence.is_stopped(rank)
            can_look = status.state == RUNNING and rank not in evidence.silent and not is_gone
            if can_look and status.written_ns < wall_ns:
                return False
        return True


def judge(evidence: Evidence, now_ns: int | None = None, host: str = "") -> Verdict | None:
    """Return the reason for which the ranks stand still; `None` if nothing is known of them.

    `now_ns` is the time on the clock of `host`. Ranks of other hosts are judged at the time of
    their last words, and without the time all ranks are.
    """
    ranks = evidence.ranks
    if not ranks:
        return None
    activities = {rank: find_activity(status) for rank, status in ranks.items()}
    waits = find_waits(ranks, activities, find_quiet(evidence, activities))
    kind, culprits = classify(evidence, activities, waits)
    waiting = find_waiting(evidence, activities, waits, culprits)
    alive = [rank for rank, status in ranks.items() if status.state == RUNNING] or list(ranks)
    stood_ns = 0
    for rank in alive:
        status = ranks[rank]
        is_own = now_ns is not None and plain_host(status.host) == host
        stood_ns = max(stood_ns, now_ns - status.moved_ns if is_own and now_ns else status.stood_ns)
    if kind is HangClass.UNCLEAR and not waits.open:
        is_long = show_life(culprits, evidence) or may_be_heard(culprits, evidence)
    else:
        is_long = may_take_long(culprits, evidence, activities, is_waited_for=bool(waiting))
    # Those that all entered may wait on their device for a rank whose file is not here.
    is_behind = bool(evidence.missing and waits.open) and not waits.differing
    is_long &= kind not in NEVER_LONG
    is_long |= kind in {HangClass.NONE_LEFT, HangClass.MISMATCH} and is_behind
    return Verdict(
        kind,
        Level.NOTICE if is_long else Level.ALARM,
        culprits,
        waiting,
        find_call(waits, waiting, culprits),
        evidence,
        activities,
        waits,
        tuple(
            list_missing(evidence, activities, waits, culprits, is_meeting=kind is HangClass.STORE)
        ),
        stood_ns / 1e9,
        waits.differing if kind in {HangClass.MISMATCH, HangClass.EVALUATION} else {},
    )


def find_quiet(evidence: Evidence, activities: Mapping[int, Activity]) -> frozenset[int]:
    """Return the ranks whose calls are old, unless a newer stack shows that they wait."""
    quiet = []
    for rank in evidence.silent:
        shows_wait = rank in evidence.native and activities[rank].may_wait_for_ranks
        if not shows_wait and not evidence.is_dead(rank):
            quiet.append(rank)
    return frozenset(quiet)


def classify(
    evidence: Evidence, activities: Mapping[int, Activity], waits: Waits
) -> tuple[HangClass, tuple[int, ...]]:
    """Return the class, and the ranks that hold up the job; the surest evidence comes first."""
    ranks = evidence.ranks
    failed = find_failed(ranks, activities, waits)
    dead = tuple(filter(evidence.is_dead, ranks))
    stopped = tuple(filter(evidence.is_stopped, ranks))
    meeting = {rank for rank, activity in activities.items() if activity.doing is Doing.MEETING}
    found: tuple[HangClass, tuple[int, ...]]
    have_waited = died_waiting(dead, ranks, waits)
    if waits.differing and (failed is not None or have_waited):
        found = classify_difference(waits.differing, activities)
    elif dead and not (have_waited and waits.waited_for.difference(dead)):
        found = HangClass.RANK_DEAD, dead
    elif failed is not None:
        found = HangClass.RANK_DEAD, (failed,)
    elif stopped:
        found = HangClass.RANK_STOPPED, stopped
    elif meeting and not waits.open:
        others = sorted(set(range(evidence.world_size)).difference(meeting))
        found = HangClass.STORE, tuple(others or sorted(meeting))
    elif waits.open:
        found = classify_calls(evidence, activities, waits)
    else:
        found = classify_without_calls(evidence, activities)
    return found


def classify_calls(
    evidence: Evidence, activities: Mapping[int, Activity], waits: Waits
) -> tuple[HangClass, tuple[int, ...]]:
    """Classify a job in which ranks are in a collective."""
    culprits = find_culprits(evidence, waits)
    if culprits and waits.open.keys() >= set(culprits):
        return HangClass.NONE_LEFT, culprits  # everybody has entered, and these have not left
    if culprits:
        return classify_culprits(culprits, evidence, activities)
    if any(waits.missing.values()):  # all of them wait for each other
        return HangClass.MISMATCH, find_apart(waits.open)
    blocked = tuple(rank for rank, call in waits.open.items() if call.started is False)
    if blocked and len(blocked) < len(waits.open):
        return HangClass.DEVICE_BUSY, blocked
    return HangClass.NONE_LEFT, tuple(sorted(waits.open))


def classify_culprits(
    culprits: tuple[int, ...], evidence: Evidence, activities: Mapping[int, Activity]
) -> tuple[HangClass, tuple[int, ...]]:
    """Classify ranks for which others wait in a collective.

    Nobody knows in which one a rank is that left no file, or that fell silent as it trained.
    """
    known = []
    for rank in culprits:
        own = evidence.ranks.get(rank)
        if own is not None and (own.stack or rank not in evidence.unheard):
            known.append(rank)
    if known:
        return class_of(known, evidence, activities), tuple(known)
    has_trained = any(status.steps for status in evidence.ranks.values())
    if has_trained or evidence.unheard.intersection(culprits):
        return HangClass.UNCLEAR, culprits
    return class_of(culprits, evidence, activities), culprits


def find_culprits(evidence: Evidence, waits: Waits) -> tuple[int, ...]:
    """Return the ranks that others wait for, or else those without a file that they may be."""
    found = waits.waited_for.intersection(evidence.ranks) or waits.waited_for
    is_unknown = any(not call.members and not call.is_message for call in waits.open.values())
    if not found and is_unknown:
        found = frozenset(evidence.missing)
    return tuple(sorted(found))


def classify_without_calls(
    evidence: Evidence, activities: Mapping[int, Activity]
) -> tuple[HangClass, tuple[int, ...]]:
    """Classify a job in which no rank is known to wait for another."""
    running = [rank for rank, status in evidence.ranks.items() if status.state == RUNNING]
    silent = evidence.unheard.intersection(running)
    if silent:
        return HangClass.UNCLEAR, tuple(sorted(silent))
    doing = {activities[rank].doing for rank in running}
    # The gradient exchange is inside a backward. The stack shows no rank at the end of a message.
    others = [rank for rank in running if not activities[rank].may_wait_for_ranks]
    if others:
        kind = class_of(others, evidence, activities)
        if kind is HangClass.NEVER_ENTERED and len(others) == len(running):
            kind = HangClass.OWN_CODE  # the other ranks have ended: nobody waits
        return kind, tuple(sorted(others))
    standing = tuple(running or evidence.ranks)
    if Doing.COLLECTIVE in doing:
        return HangClass.UNCLEAR, standing
    return class_of(standing, evidence, activities), standing


def classify_difference(
    differing: Mapping[int, Call], activities: Mapping[int, Activity]
) -> tuple[HangClass, tuple[int, ...]]:
    """Return the ranks that evaluate, if only some do, or else those that are in the minority."""
    evaluating = [rank for rank in differing if activities[rank].evaluates]
    if evaluating and len(evaluating) < len(differing):
        return HangClass.EVALUATION, tuple(sorted(evaluating))
    return HangClass.MISMATCH, find_minority(differing)


def class_of(
    culprits: Iterable[int], evidence: Evidence, activities: Mapping[int, Activity]
) -> HangClass:
    """Return the class of ranks that have not entered a collective, by what they do."""
    known = [activities[rank] for rank in culprits if rank in activities]
    states = {evidence.ranks[rank].state for rank in culprits if rank in activities}
    if RUNNING not in states and len(known) < len(evidence.ranks):
        return HangClass.RANK_DEAD if states else HangClass.NEVER_ENTERED
    doing = {activity.doing for activity in known}
    if doing == {Doing.MEETING}:
        return HangClass.STORE
    everybody = set(range(evidence.world_size)) <= set(culprits)
    if doing == {Doing.COMPILE}:
        return HangClass.ALL_COMPILE if everybody else HangClass.COMPILE
    if all(activity.evaluates for activity in known):
        return HangClass.ALL_EVALUATE if everybody else HangClass.EVALUATION
    for wanted, kind in (
        (Doing.DATA, HangClass.DATA),
        (Doing.DEVICE, HangClass.DEVICE_BUSY),
        (Doing.CHECKPOINT, HangClass.CHECKPOINT),
    ):
        if doing == {wanted}:
            return kind
    everybody = set(evidence.ranks) == set(culprits)
    return HangClass.OWN_CODE if everybody else HangClass.NEVER_ENTERED


def find_waiting(
    evidence: Evidence,
    activities: Mapping[int, Activity],
    waits: Waits,
    culprits: tuple[int, ...],
) -> tuple[int, ...]:
    found = []
    for rank, status in evidence.ranks.items():
        is_waiting = rank in waits.open or activities[rank].may_wait_for_ranks
        is_there = status.state == RUNNING or timed_out(status, activities[rank])
        if rank not in culprits and is_there and is_waiting:
            found.append(rank)
    return tuple(found)


def find_call(waits: Waits, waiting: tuple[int, ...], culprits: tuple[int, ...]) -> Call | None:
    """Return the call in which most ranks wait for these, or else the first one of them."""
    calls = []
    for rank in waiting:
        if waits.missing.get(rank, frozenset()).intersection(culprits):
            calls.append(waits.open[rank])
    if not calls:
        calls = [waits.open[rank] for rank in (*waiting, *culprits) if rank in waits.open]
    keys = [(call.group, call.members, call.sequence, call.op, call.peer) for call in calls]
    order = [(-keys.count(key), key[2], place) for place, key in enumerate(keys)]
    return calls[min(order)[2]] if calls else None


# Say what would have to be known of a standstill for a surer verdict.
def list_missing(
    evidence: Evidence,
    activities: Mapping[int, Activity],
    waits: Waits,
    culprits: tuple[int, ...],
    *,
    is_meeting: bool,
) -> Iterator[str]:
    """Yield each thing; ranks that meet in a store have no collectives yet."""
    yield from evidence.damaged
    if evidence.missing:
        who = say_ranks(evidence.missing)
        yield f"{who}: no status file; collect the folders of all hosts"
    for rank in sorted(evidence.unheard):
        state = evidence.states.get(rank, "?")
        if state not in ENDED_STATES and state not in STOPPED:
            yield f"rank {rank}: nothing since it fell silent; its host was not seen from outside"
    unknown = [rank for rank, status in evidence.ranks.items() if not status.calls_from]
    if len(evidence.ranks) > 1 and unknown and not is_meeting and not waits.open:
        yield f"{say_ranks(unknown)}: no list of collectives"
    for rank in culprits:
        status = evidence.ranks.get(rank)
        if status is not None and status.state == RUNNING and not status.stack:
            yield f"rank {rank}: no stack"
    for rank in sorted(evidence.crashed):
        if activities[rank].doing is Doing.COLLECTIVE:
            yield (
                f"rank {rank}: what it sent and why the signal came; a library may abort a rank "
                "that gets a message of another size or type: see the job's own output"
            )
