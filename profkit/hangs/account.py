"""The account of a run for `profkit why`: what was seen, or what its files show."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profkit.attached import TRAINED, read_notes
from profkit.errors import UnreadableError
from profkit.hangs.classes import NEVER_LONG, HangClass, Level
from profkit.hangs.evidence import HOST_SUFFIX, Evidence, read_evidence
from profkit.hangs.incidents import MOVED, SEEN, read_events, read_lines
from profkit.hangs.incidents import SUFFIX as ALARMS_SUFFIX
from profkit.hangs.long_parts import held_up_s
from profkit.hangs.status import (
    FAILED,
    FOLDER,
    IMPORTED,
    RUNNING,
    STACK_SUFFIX,
    SUFFIX,
    WORKER_SUFFIX,
    Status,
)
from profkit.hangs.verdict import Verdict, judge
from profkit.hangs.waits import say_ranks
from profkit.hangs.words import as_json
from profkit.text import duration, fold, plural, safe_text
from profkit.trace.flag import FlagKind
from profkit.trace.folders import find_ranks
from profkit.trace.jsonfile import read_json
from profkit.trace.manifest import RunManifest
from profkit.vocab import RunState

HUNG, LONG, FINE, UNKNOWN = "hung", "long part", "did not hang", "inconclusive"
"""States of an account."""

SHORTEST_S = 5.0
"""A killed job that had ended no step for this long may have hung; shorter is not mentioned."""


@dataclass(frozen=True)
class Account:
    """The standstills of a run, as far as they are known."""

    state: str
    headline: str
    verdict: dict[str, Any] | None = None
    moved_again: tuple[dict[str, Any], ...] = ()
    """Standstills after which the job moved again: their verdicts, and how long they took."""
    later: tuple[str, ...] = ()
    """What was seen after the first verdict."""
    damaged: tuple[str, ...] = ()
    """Files that could not be read, and ranks whose file is missing."""

    def lines(self) -> Iterator[str]:
        """Yield the lines that `profkit why` prints."""
        yield self.headline
        if self.verdict is not None:
            yield fold(str(self.verdict.get("text", "")))
            for rank, place in dict(self.verdict.get("places") or {}).items():
                where = f"{place.get('file')}:{place.get('line')} {place.get('function')}"
                yield f"  rank {safe_text(str(rank))}: {safe_text(where)}"
            for line in self.verdict.get("missing") or ():
                yield fold(f"not known: {line}")
        for words in self.later:
            yield fold(f"later: {words}")
        for each in self.moved_again:
            stood = duration(float(each.get("stood_s") or 0) * 1e9)
            yield fold(f"moved again after {stood}: {each.get('class')}: {each.get('text')}")
        said = [self.headline, *((self.verdict or {}).get("missing") or ())]
        for damage in self.damaged:
            if not any(damage in str(words) for words in said):
                yield fold(f"not known: {damage}")


def read_account(run: Path) -> Account:
    """Return the account of a run, from its files alone."""
    account = dataclasses.replace(account_of_watched(run), damaged=tuple(find_damage(run)))
    if account.state == FINE and trained_unwatched(run):
        words = "inconclusive: other processes of the job trained, and nothing watched them"
        return dataclasses.replace(account, state=UNKNOWN, headline=words)
    return account


def trained_unwatched(run: Path) -> bool:
    """Return true if a job that did not end well had more processes than those watched.

    A launcher that restarts its ranks, or a script that trains twice, has several for one rank.
    """
    manifest = RunManifest.read(run)
    trained = {process for event, process, _ in read_notes(str(run)) if event == TRAINED}
    watched = {path.name.partition("-")[0] for path in (run / FOLDER).glob(f"*{SUFFIX}")}
    is_flagged = any(flag.kind is FlagKind.UNRECORDED for flag in manifest.flags)
    return manifest.state is not RunState.COMPLETE and (is_flagged or len(trained) > len(watched))


def account_of_watched(run: Path) -> Account:
    """Return the account of the processes whose status the run has."""
    seen: dict[str, list[dict[str, Any]]] = {}
    past = []
    for event in read_events(run):
        verdicts = seen.setdefault(event["source"], [])
        if event["event"] == SEEN and isinstance(event.get("verdict"), dict):
            verdicts.append(event["verdict"])
        elif event["event"] == MOVED and verdicts:
            alarms = _alarms(verdicts)
            chosen = {**(alarms or verdicts)[0], "stood_s": event.get("stood_s")}
            if chosen.get("class") == HangClass.NEVER_ENTERED.value:
                chosen["class"] = HangClass.ENTERED_LATE.value
            past.append(chosen)
            verdicts.clear()
    unresolved = list(itertools.chain(*seen.values()))
    if unresolved and RunManifest.read(run).state is RunState.COMPLETE:
        return account_of_end(unresolved, tuple(past))
    if unresolved:
        return account_of_events(unresolved, tuple(past))
    evidence = read_evidence(run)
    verdict = judge(evidence) if evidence is not None else None
    if evidence is None or verdict is None:
        why = "the run has no status files of its ranks"
        if evidence is not None and evidence.damaged:
            why = evidence.damaged[0]
        return Account(UNKNOWN, f"inconclusive: {why}", moved_again=tuple(past))
    return account_of_files(run, evidence, verdict, tuple(past))


def say_standstill(run: Path) -> str:
    """Return in one line why a run stands still; empty if its files do not show that it does."""
    account = account_of_watched(run)
    if account.state == FINE or account.verdict is None:
        return ""
    return safe_text(f"{account.headline}: {account.verdict.get('text')}")


def _alarms(verdicts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in verdicts if each.get("level") == Level.ALARM.value]


def account_of_end(verdicts: list[dict[str, Any]], past: tuple[dict[str, Any], ...]) -> Account:
    """Return the account of a job that ended well soon after it had stood still."""
    alarms = _alarms(verdicts)
    if not alarms:
        return Account(FINE, "the job did not hang: it ended with exit code 0", moved_again=past)
    kind = safe_text(str(alarms[0].get("class")))
    headline = f"the job stood still and then ended with exit code 0: {kind}"
    return Account(FINE, headline, alarms[0], past)


def account_of_events(verdicts: list[dict[str, Any]], past: tuple[dict[str, Any], ...]) -> Account:
    """Return the account of a standstill that was seen and has not ended.

    The first alarm counts: what was seen later may be how the job was ended.
    """
    alarms = _alarms(verdicts)
    sure = [each for each in alarms if each.get("class") != HangClass.UNCLEAR.value]
    first = (sure or alarms or verdicts[-1:])[0]
    kind = safe_text(str(first.get("class")))
    later = []
    for each in verdicts[verdicts.index(first) + 1 :]:
        later.append(f"{each.get('class')}: {each.get('text')}")
    if not alarms:
        headline = f"no step ended for long, which may be as it should: {kind}"
        is_unclear = first.get("class") == HangClass.UNCLEAR.value
        return Account(UNKNOWN if is_unclear else LONG, headline, first, past)
    state = HUNG if sure else UNKNOWN
    return Account(state, f"the job stood still: {kind}", first, past, tuple(later))


def account_of_files(
    run: Path, evidence: Evidence, verdict: Verdict, past: tuple[dict[str, Any], ...]
) -> Account:
    """Return the account of a run in which `profkit run` saw no standstill."""
    statuses = list(evidence.ranks.values())
    kind, stood = verdict.kind.value, duration(verdict.stood_s * 1e9)
    limit_s = max(status.limit_ns for status in statuses) / 1e9
    has_ended = RunManifest.read(run).state is RunState.ABORTED
    is_long = verdict.stood_s >= limit_s
    for rank in verdict.waits.open:  # a rank that ended in a collective had waited for long
        is_long |= evidence.is_dead(rank) or evidence.ranks[rank].state == FAILED
    shown: dict[str, Any] | None = as_json(verdict)
    if any(status.calls_from == IMPORTED for status in statuses):
        state, headline = (HUNG if verdict.waits.open else FINE), f"in the imported dumps: {kind}"
        if not verdict.waits.open:
            headline, shown = "in the imported dumps, all collectives have ended", None
    elif verdict.kind is HangClass.RANK_DEAD and outlived_s(evidence, verdict.ranks) < limit_s:
        state, headline = judge_dead(evidence, verdict)
    elif over := say_over(statuses, verdict):
        state, headline, shown = FINE, over, None
    elif is_long:
        state, headline = judge_standstill(run, verdict, limit_s)
    elif has_ended and (verdict.stood_s >= SHORTEST_S or verdict.entered):
        state = UNKNOWN
        headline = f"inconclusive: no step for {stood} when the job was ended; {kind}"
    else:
        headline = f"the job did not stand still for {duration(limit_s * 1e9)}"
        state, shown = FINE, None
    return Account(state, headline, shown, past)


def judge_standstill(run: Path, verdict: Verdict, limit_s: float) -> tuple[str, str]:
    """Return the state of a job in which no step ended for long, and how long that was."""
    kind, stood = verdict.kind, duration(verdict.stood_s * 1e9)
    unclear = kind is HangClass.UNCLEAR
    if verdict.level is Level.NOTICE:
        # Code that computes may take long if no rank waits for it, which other folders may show.
        unclear |= kind is HangClass.OWN_CODE and bool(verdict.evidence.missing)
        words = f"no step for {stood}, which may be as it should: {kind.value}"
        return UNKNOWN if unclear else LONG, words
    held_s = held_up_s(run, verdict.evidence, verdict.ranks, verdict.waiting)
    is_ordinary = kind not in NEVER_LONG  # as in the alarm
    if is_ordinary and held_s is not None and held_s < limit_s <= verdict.stood_s:
        who = f"{say_ranks(verdict.ranks)} {'has' if len(verdict.ranks) == 1 else 'have'}"
        since = duration(held_s * 1e9)
        return UNKNOWN, (
            f"inconclusive: no step for {stood}, but {who} held up the job for only the last "
            f"{since}: {kind.value}"
        )
    return UNKNOWN if unclear else HUNG, f"the job stood still, no step for {stood}: {kind.value}"


def say_over(statuses: Sequence[Status], verdict: Verdict) -> str:
    """Say that no rank has anything to do; empty if one has."""
    running = [status for status in statuses if status.state == RUNNING]
    if not running and not verdict.entered:
        return "the job did not hang: all of its ranks have ended"
    if running and all(status.is_idle for status in running):
        return "the job did not hang: it is idle at a prompt"
    return ""


def judge_dead(evidence: Evidence, verdict: Verdict) -> tuple[str, str]:
    """Return the state of a job that ended soon after a rank did, and why.

    If the rank was killed when it had stood still for long, it may have been hung.
    """
    kind, stood_ns = verdict.kind.value, 0
    for status in map(evidence.ranks.__getitem__, verdict.ranks):
        if status.state != FAILED and status.stood_ns >= status.limit_ns:
            stood_ns = max(stood_ns, status.stood_ns)
    if stood_ns:
        return UNKNOWN, f"inconclusive: {kind}, and no step of it for {duration(stood_ns)} before"
    return FINE, f"the job did not stand still: {kind}"


def outlived_s(evidence: Evidence, dead: Sequence[int]) -> float:
    """Return for how long other ranks went on after the last words of the dead ones."""
    ended_ns, alive_ns = [], []
    for rank, status in evidence.ranks.items():
        if rank in dead:
            ended_ns.append(status.written_ns)
        elif status.state == RUNNING:
            alive_ns.append(status.written_ns)
    if alive_ns and ended_ns:
        return (max(alive_ns) - min(ended_ns)) / 1e9
    return 0.0


# Find what is damaged or missing among the status files of a run.
def find_damage(run: Path) -> Iterator[str]:
    """Yield a line about each file that cannot be read, and one about missing files."""
    folder = run / FOLDER
    if not folder.is_dir():
        return
    ranks = set()
    for path in sorted(folder.iterdir()):
        number = path.name.partition("-")[0]
        if path.name.endswith(SUFFIX) and number.isdecimal():
            ranks.add(int(number))
        problem = _read(path)
        if problem and os.path.lexists(path):  # while the job runs, a file may go
            yield problem
    lost = sorted({rank.rank for rank in find_ranks(run)} - ranks)
    if lost:
        yield f"{say_ranks(tuple(lost))}: no status file"


def _read(path: Path) -> str:
    """Return why a file of the folder cannot be read; empty if it can."""
    shown = safe_text(str(path))
    try:
        if path.name.endswith(SUFFIX):
            Status.read(path)
        elif path.name.endswith((HOST_SUFFIX, WORKER_SUFFIX, STACK_SUFFIX)):
            read_json(path)
        elif path.name.endswith(ALARMS_SUFFIX):
            broken = read_lines(path).count(None)
            return f"{shown}: {plural(broken, 'line')} cannot be read" if broken else ""
    except UnreadableError as error:
        return str(error)
    except OSError as error:
        return f"{shown}: {error.strerror}"
    return ""
