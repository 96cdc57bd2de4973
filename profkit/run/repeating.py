"""Run a job several times, in turn with another one."""

from __future__ import annotations

import contextlib
import random
import shlex
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profkit.attached import disabled
from profkit.errors import ExitCode, ProfkitError
from profkit.run.awaiting import DiskWork
from profkit.run.launch import Ended, Repeat, find_program, run_job
from profkit.run.naming import clean, name_job, name_run
from profkit.text import plural, safe_text, shell_word
from profkit.trace.folders import group_of, read_manifests

DEFAULT_REPEATS = 3
"""Runs per side if two commands are compared: the fewest whose noise allows a useful interval."""

BASE, TARGET = "base", "target"


@dataclass(frozen=True)
class RepeatedJob:
    """A command, and the group that its runs belong to."""

    command: tuple[str, ...]
    group: str
    earlier: str = ""
    """The group of the session before that had the same name."""


def run_repeats(
    command: Sequence[str],
    output: Path,
    *,
    repeats: int,
    against: Sequence[str] = (),
    name: str = "",
    samples_per_step: int | None = None,
) -> int:
    """Run `command`, and `against` in turn; return the exit code of the first run that fails.

    It stops after a run that fails, is ended by a signal, or records nothing: the rest would be
    time lost. Both jobs get the name of `command`, so that their runs can be compared.
    """
    for each in filter(None, (command, against)):
        find_program(each[0])
    jobs = _name_groups(command, against, output, name)
    workload = clean(name) if name else name_job(command)
    session = uuid.uuid4().hex
    for number, job in take_turns(jobs, repeats):
        words = safe_text(shlex.join(job.command))
        _say(f"run {number} of {repeats} of {safe_text(job.group)}: {words}")
        repeat = Repeat(job.group, number, repeats, session)
        ended = run_job(
            job.command, output, name=workload, samples_per_step=samples_per_step, repeat=repeat
        )
        why = _why_stop(ended)
        if why:
            _say(f"run {number} of {safe_text(job.group)} {why}, so no further run was started")
            return ended.code or -ended.stopped_by or ExitCode.UNFINISHED
    if not disabled():
        _say(_conclusion(jobs, repeats, output))
    return 0


def _why_stop(ended: Ended) -> str:
    """Return why no further run makes sense after this one; nothing if it does."""
    if ended.code:
        return "failed"
    if ended.stopped_by:
        return f"was ended by {signal.Signals(ended.stopped_by).name}"
    return "" if ended.run is not None or disabled() else "recorded nothing"


def take_turns(
    jobs: Sequence[RepeatedJob], repeats: int, order: random.Random | None = None
) -> Iterator[tuple[int, RepeatedJob]]:
    """Yield each job once per round, in random order: what changes meanwhile favours neither."""
    order = order or random.Random()
    for number in range(1, repeats + 1):
        round_ = list(jobs)
        order.shuffle(round_)
        for job in round_:
            yield number, job


def _name_groups(
    command: Sequence[str], against: Sequence[str], output: Path, name: str
) -> list[RepeatedJob]:
    """Name each command's group; a number is added if the folder has a group of that name."""
    taken: set[str] = set()
    with contextlib.suppress(ProfkitError):  # a disk that does not answer: the run will say so
        taken = DiskWork(lambda: _read_groups(output)).finish(output)
    stem = clean(name) if name else name_run(command)
    earlier = ""
    for attempt in range(1, len(taken) + 2):
        numbered = stem if attempt == 1 else f"{stem}-{attempt}"
        jobs = [RepeatedJob(tuple(command), numbered, earlier)]
        if against:
            base = RepeatedJob(tuple(against), f"{numbered}-{BASE}")
            jobs = [base, RepeatedJob(tuple(command), f"{numbered}-{TARGET}")]
        if not taken & {job.group for job in jobs}:
            break
        earlier = numbered
    return jobs


def _read_groups(output: Path) -> set[str]:
    return {group_of(manifest) for _, manifest in read_manifests(output)}


def _conclusion(jobs: Sequence[RepeatedJob], repeats: int, output: Path) -> str:
    groups = [shell_word(str(output / job.group)) for job in jobs]
    runs = plural(repeats, "run")
    if len(jobs) == 1:
        earlier = "BASE"
        if jobs[0].earlier:
            earlier = shell_word(str(output / jobs[0].earlier))
        return (
            f"{runs} of the group {safe_text(jobs[0].group)}; compare it with another group: "
            f"profkit explain {earlier} {groups[0]}"
        )
    return f"{runs} of each command; compare them: profkit explain {' '.join(groups)}"


def _say(line: str) -> None:
    print(f"profkit: {line}", file=sys.stderr)
