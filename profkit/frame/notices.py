"""Notices about a run that a reader must know before believing its figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.errors import UnreadableError
from profkit.frame.device_times import DeviceTimes
from profkit.frame.estimate import Ints
from profkit.frame.parts import sampled_one_in
from profkit.frame.selection import window_steps
from profkit.hangs.incidents import is_hung
from profkit.plain_file import read_plain
from profkit.text import duration, percent, plural, safe_text
from profkit.trace import Trace
from profkit.trace.reader import events_of
from profkit.trace.sharing import AT_LEAST
from profkit.vocab import (
    EYE,
    LOST_GPU,
    PATCHED_THREADS,
    WHOLE_STEPS,
    EventKind,
    RunState,
)

LONGEST_REASON = 1_000

LEAST_BETWEEN = 0.02
"""A smaller share of the time between steps is not said."""

NO_END = "it still runs, or it was killed"
"""Why a run has no end; which of the two it is, no file says."""


def find_notices(trace: Trace, device_times: DeviceTimes | None) -> tuple[str, ...]:
    """Return the notices, most important first; none if all is well."""
    notices = []
    if trace.manifest.state is RunState.ABORTED:
        notices.append(f"the run was aborted: {trace.manifest.why}")
    elif trace.manifest.state is RunState.RUNNING:
        notices.append(f"the run has no end: {NO_END}")
    if trace.manifest.state is not RunState.COMPLETE and is_hung(trace.path):
        notices.append("the job stood still: 'profkit why' names the rank and the line")
    notices += _end_notices(trace)
    missing = len(trace.missing_ranks)
    if missing and not is_log(trace):
        notices.append(f"no files of {missing} of {trace.manifest.world_size} ranks")
    if trace.sharing.why:
        why = safe_text(trace.sharing.why)
        notices.append(f"samples are not counted, because ranks may share them: {why}")
    notices += find_thinned_notice(trace)
    if trace.ranks and (level := trace.ranks[0].level):
        kept = f"1 in {2**level} steps, in blocks at random places"
        notices.append(f"{len(trace.ranks):,} ranks are many: figures are those of {kept}")
    notices += _lines_notices(trace)
    notices += _failures(trace)
    if device_times is not None:
        notices += device_times.notices
    if pc.any(pc.equal(trace.samples["metric"], WHOLE_STEPS)).as_py():
        notices.append(
            "the job trains a program of Paddle's static graph:"
            " its steps are whole, and what is inside them is unknown"
        )
    if pc.any(pc.equal(trace.samples["metric"], PATCHED_THREADS)).as_py():
        notices.append(
            "the job replaced Python's threads, as gevent and eventlet do: those of profkit ran"
            " only while it waited, so that readings and sampled lines are late or missing"
        )
    return (*notices, *trace.problems)


def is_log(trace: Trace) -> bool:
    """Return true if a run is from a log, which one rank prints for all of them."""
    return "log_of" in trace.manifest.config


def others_in_log(config: Mapping[str, Any], others: int) -> str:
    """Return what a log of one rank has of the other ranks."""
    which = "the other one" if others == 1 else f"the other {others:,}"
    if AT_LEAST in config:
        which = "the others"
    has_timers = any("the slowest rank" in str(each) for each in config.get("stated") or ())
    known = "says nothing about"
    if has_timers:
        known = "has only the timers of"
    return f"the log is of one rank; it {known} {which}"


def ranks_of_model(trace: Trace) -> int:
    """Return the number of ranks that share the samples of a log's rank, and its model.

    One rank prints a log. If a model is split among several, they take the same steps.
    """
    config, ranks = trace.manifest.config, trace.manifest.world_size
    groups = config.get("rows_speak_for_ranks")
    if not is_log(trace) or not isinstance(groups, int) or not 0 < groups < ranks:
        return 1
    return 1 if ranks % groups else ranks // groups


def _end_notices(trace: Trace) -> Iterator[str]:
    """Report what the ranks' end records say: dropped rows and early ends."""
    dropped, early = 0, []
    for rank in trace.ranks:
        try:
            end = rank.end
        except UnreadableError as error:
            yield str(error)
            continue
        if end is None:
            early.append(f"rank {rank.rank} stopped early: it wrote no end record")
            continue
        dropped += end.dropped
        if end.reason != RunState.COMPLETE.value:
            early.append(f"rank {rank.rank} stopped early: {end.reason}")
    if dropped:
        yield f"{dropped:,} rows were dropped while recording"
    if trace.manifest.state is RunState.COMPLETE and early:
        if early[1:]:
            early[0] += f" (and {plural(len(early) - 1, 'more rank')})"
        yield early[0]


def find_thinned_notice(trace: Trace) -> Iterator[str]:
    """Say which figures of a long run are those of a sample of its steps."""
    sums = trace.sums
    if not sums.num_rows:
        return
    first, last = pc.min(sums["first_step"]).as_py(), pc.max(sums["last_step"]).as_py()
    yield (
        f"of steps {first:,} to {last:,}, only sums and some steps were kept: throughput, step "
        "time and phases of the report are over all steps, other figures are those of a sample "
        f"of one step in {sampled_one_in(sums):,}; whether steps are slow at regular intervals is "
        "not known, because the sample lacks most of them: record a shorter run"
    )


def _lines_notices(trace: Trace) -> Iterator[str]:
    """Say why the process outside of the job did not read lines, or that it ended too early."""
    reasons = set[str]()
    for path in trace.path.glob(f"{EYE}/*.answer"):
        with contextlib.suppress(OSError):
            reasons.add(read_plain(path, LONGEST_REASON).decode("utf-8", "replace"))
    for why in sorted(filter(None, reasons)):
        yield f"lines were looked at by a thread of the job, twice per second: {safe_text(why)}"
    ended = trace.manifest.state is not RunState.RUNNING
    early = [rank.rank for rank in trace.ranks if rank.eye is not None and not rank.eye.is_ended]
    if ended and early:
        of = "" if len(trace.ranks) == 1 else f" of {plural(len(early), 'rank')}"
        yield f"the process that samples lines{of} was killed, or still writes: lines may end early"


def _failures(trace: Trace) -> Iterator[str]:
    """Report failures in the job: of profkit itself, of devices, and of samples."""
    for what, count in _largest_by_name(trace, EventKind.FAILURE).items():
        yield f"profkit's {what} failed {plural(int(count), 'time')} and was left out"
    for what, longest in _largest_by_name(trace, EventKind.HANG).items():
        yield f"profkit's {what} did not answer for {duration(longest)}"
    yield from find_unmeasured(trace)
    lost = trace.samples.filter(pc.equal(trace.samples["metric"], LOST_GPU))
    devices = map(str, lost["device"].to_pylist())
    for rank, device in sorted(set(zip(lost["rank"].to_pylist(), devices, strict=True))):
        yield f"{device} of rank {rank} was lost while it trained; its readings end there"
    bad = events_of(trace.events, EventKind.BAD_SAMPLE)
    if bad.num_rows:
        paths, first = bad["name"].to_pylist(), bad["detail"][0].as_py()
        times, files = plural(len(paths), "time"), plural(len(set(paths)), "file")
        yield f"bad samples met {times}, {files}, the first: {paths[0]}: {first}"


def find_unmeasured(trace: Trace) -> Iterator[str]:
    """Yield the parts of the job that are not measured."""
    for what in _largest_by_name(trace, EventKind.UNMEASURED):
        yield f"not measured: {what}"
    share = share_between_steps(trace.steps, window_steps(trace.samples))
    if share >= LEAST_BETWEEN and not is_log(trace):
        yield f"{percent(share)} of the time is between steps, and in no figure of a step"


def share_between_steps(steps: pa.Table, windows: Ints) -> float:
    """Return the share of the time that is after the end of a step and before the next one.

    Whoever marks the steps decides what is in them: a wait for data may be in none. Kernel windows
    begin and end between steps.
    """
    names = ("rank", "step", "start_ns", "end_ns")
    rank, step, start, end = (steps[name].to_numpy() for name in names)
    around = np.concatenate([windows - 1, windows])
    follows = (np.diff(step) == 1) & (np.diff(rank) == 0) & ~np.isin(step[:-1], around)
    whole = float((start[1:] - start[:-1])[follows].sum())
    return float((start[1:] - end[:-1])[follows].sum()) / whole if whole > 0 else 0.0


def _largest_by_name(trace: Trace, kind: EventKind) -> dict[str, float]:
    """Return the largest value of the events of this kind, by name.

    Failures are counted up on each rank, so those of the ranks are added.
    """
    rows = events_of(trace.events, kind)
    columns = (rows[name].to_pylist() for name in ("rank", "name", "value"))
    by_rank: dict[tuple[str, int], float] = {}
    for rank, name, value in zip(*columns, strict=True):
        by_rank[name, rank] = max(value or 0.0, by_rank.get((name, rank), 0.0))
    found: dict[str, float] = {}
    for (name, _), value in by_rank.items():
        if kind is EventKind.FAILURE:
            found[name] = found.get(name, 0) + value
        else:
            found[name] = max(value, found.get(name, value))
    return found
