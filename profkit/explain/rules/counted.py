"""Causes that are a count, or a share, of what a step has more of, and rows that grew.

Each is a row of this table: which rows of the ledger it can make longer, the words for what there
is more of (or none), and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.ledger import Row, sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import (
    EXCHANGE,
    WORK,
    Case,
    Cause,
    Specific,
    cost,
    from_to,
    grew,
    here,
    in_time,
    knobs_for,
    other_side,
    trains_on_host,
)
from profkit.frame.costs import INPUT
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.vocab import Phase


@dataclass(frozen=True)
class Counted:
    """A rule that claims what its rows grew by, if there is more of something."""

    kind: str
    label: str
    """What the rows are called together."""
    rows: Sequence[str]
    say_more: Callable[[Case, Row], str]
    """Returns what there is more of, in the order of time; empty if there is not."""
    remedy: str
    specific: Specific = Specific.COUNT
    on_device: Sequence[str] | None = None
    """The rows of a job that trains on a device, if these are others."""

    def __call__(self, case: Case) -> Cause | None:
        ledger, names = case.ledger, self.rows
        if self.on_device is not None and not trains_on_host(case):
            names = self.on_device
        row = sum_rows(ledger, self.label, names)
        words = self.say_more(case, row) if grew(row, ledger) else ""
        if not words:
            return None
        evidence = f"{words}; {self.label} went from {from_to(row, ledger)} per step"
        return Cause.from_row(self.kind, row, ledger, evidence, self.remedy, specific=self.specific)


# Messages of gradients, and others.
def _more_buckets(case: Case, _row: Row) -> str:
    """Compare the buckets of gradients that are as large together."""
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None or not before.buckets:
        return ""
    sent = before.buckets * before.message_bytes, after.buckets * after.message_bytes
    is_alike = 0 < sent[1] <= POLICY.same_bytes_ratio * sent[0]
    if after.buckets < POLICY.many_ratio * before.buckets or not is_alike:
        return ""
    was, now = in_time(case.ledger, before, after)
    return (
        f"{was.buckets} buckets of {byte_size(was.message_bytes)} became {now.buckets} of "
        f"{byte_size(now.message_bytes)}, in {significant(now.messages, 2)} messages per step"
    )


tiny_buckets = Counted(
    "tiny_buckets",
    "backward and exchange",
    EXCHANGE,
    _more_buckets,
    "larger buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel): few "
    "messages that each fill the link",
)


def _more_rounds(case: Case, _row: Row) -> str:
    before, after = case.before.exchanges, case.after.exchanges
    if before is None or after is None or not (before.messages and after.messages):
        return ""
    known, rounds = before.messages / before.buckets, after.messages / after.buckets
    if rounds < POLICY.often_ratio * known:
        return ""
    return (
        f"{here(case.ledger)}each bucket is exchanged {significant(rounds, 2)} times per step, "
        f"{significant(known, 2)} in the {other_side(case.ledger)}"
    )


accumulation_without_no_sync = Counted(
    "accumulation_without_no_sync",
    "backward and exchange",
    EXCHANGE,
    _more_rounds,
    "exchange once per step: wrap all but the last backward in model.no_sync()",
)


# Work of the device, by windows of kernels.
def _more_copies_to_host(case: Case, _row: Row) -> str:
    before, after = case.before.windows, case.after.windows
    if before is None or after is None or after.on_host:
        return ""
    was = before.calls_by_category.get(COPY_CATEGORIES["DtoH"], 0.0)
    now = after.calls_by_category.get(COPY_CATEGORIES["DtoH"], 0.0)
    if now < was + POLICY.added_copies:
        return ""
    first, then = in_time(case.ledger, was, now)
    return (
        f"{significant(first)} copies to the host per step became {significant(then)}, after each "
        "of which the device has nothing to do"
    )


sync_stalls = Counted(
    "sync_stalls",
    "computing",
    WORK,
    _more_copies_to_host,
    "keep values on the device: no .item(), .cpu(), print or if on a tensor in the loop; log every "
    "so many steps, and copy with non_blocking=True",
    Specific.OPERATOR,
)


def _more_launches(case: Case, row: Row) -> str:
    """Compare the kernel windows of both sides: only they separate many calls from long ones."""
    ledger, before, after = case.ledger, case.before.windows, case.after.windows
    if before is None or after is None:
        return ""
    waited, waits = before.launched_late_share or 0.0, after.launched_late_share
    waits_more = waits is not None and waits > waited + POLICY.added_late_share
    is_smaller = after.calls > POLICY.often_ratio * before.calls
    is_smaller &= after.mean_ns < POLICY.short_ratio * before.mean_ns
    moves_data = after.moving_ns - before.moving_ns >= POLICY.place_share * cost(row, ledger).value
    if not waits_more and (moves_data or not is_smaller):
        return ""
    noun = "operators" if after.on_host else "kernels"
    was, now = in_time(ledger, before, after)
    words = (
        f"{significant(was.calls)} {noun} per step of {duration(was.mean_ns)} each became "
        f"{significant(now.calls)} of {duration(now.mean_ns)}"
    )
    if waits is None:
        return words
    return (
        f"{words}; {here(ledger)}the device is idle for {percent(waits, 0)} of its time because "
        f"the host launches late, {percent(waited, 0)} in the {other_side(ledger)}"
    )


launch_bound = Counted(
    "launch_bound",
    "computing",
    WORK,
    _more_launches,
    "do more in each call: whole tensors in place of loops over their parts, fused operators, "
    "a compiler (torch.compile, paddle.jit.to_static), CUDA graphs, larger batches",
    Specific.WORK,
)


def _more_pageable(case: Case, _row: Row) -> str:
    """Use the names of the copies in kernel windows; without windows, use the setting."""
    ledger, windows, known = case.ledger, case.after.windows, 0.0
    settings = [knob for knob in knobs_for(case, Phase.H2D.value) if knob.startswith("pin")]
    if windows is None or windows.pageable_share is None:
        seen = "no kernels were captured that would show it"
        return "; ".join([seen, *settings]) if settings else ""
    if case.before.windows is not None:
        known = case.before.windows.pageable_share or 0.0
    if windows.pageable_share <= known:
        return ""
    seen = (
        f"{here(ledger)}{percent(windows.pageable_share, 0)} of the copies' time is from pageable "
        f"memory, {percent(known, 0)} in the {other_side(ledger)}"
    )
    return "; ".join([seen, *settings])


unpinned_copy = Counted(
    "unpinned_copy",
    "copies to the device",
    (Phase.H2D.value,),
    _more_pageable,
    "pin the batches (pin_memory=True, use_shared_memory in Paddle) and copy them with "
    "non_blocking=True",
    Specific.TIME,
)


# Cores.
def _more_worker_cores(case: Case, row: Row) -> str:
    before, after, waiting = case.before.load, case.after.load, case.ledger.find(INPUT)
    if before is None or after is None or not after.full:
        return ""
    if after.workers < before.workers + POLICY.added_worker_cores:
        return ""
    if waiting is not None and waiting.delta.value > row.delta.value:
        return ""
    was, now = in_time(case.ledger, before, after)
    return (
        f"loader workers went from {significant(was.workers, 2)} to {significant(now.workers, 2)} "
        f"cores of {significant(now.cores, 2)}, "
        f"{significant((now.own or 0) + now.workers, 2)} with the ranks themselves{now.where}"
    )


loader_contention = Counted(
    "loader_contention",
    "computing",
    COMPUTE,
    _more_worker_cores,
    "fewer workers, or one thread in each (torch.set_num_threads(1), OMP_NUM_THREADS=1, "
    "cv2.setNumThreads(0)); leave the step the cores that it needs",
    Specific.PROCESS,
)


def _fewer_cores(case: Case, _row: Row) -> str:
    before, after = (run.environment.get("cpu_count") for run in (case.base, case.target))
    if not isinstance(before, int) or not isinstance(after, int) or after >= before:
        return ""
    hosts = {rank.manifest.host for rank in case.after.trace.ranks}
    ranks, threads = case.target.world_size / max(1, len(hosts)), case.target.config.get("threads")
    if after >= max(ranks * threads if isinstance(threads, int) else ranks, 2):
        return ""
    first, then = in_time(case.ledger, before, after)
    return (
        f"the ranks of a host may use {plural(then, 'core')} instead of {first:,}, for "
        f"{plural(int(ranks), 'rank')}"
    )


few_cores = Counted(
    "few_cores",
    "computing, input and exchange",
    (*COMPUTE, INPUT, Phase.ALLREDUCE.value),
    _fewer_cores,
    "give each rank cores of its own (taskset, --cpus, the launcher's binding); two ranks on one "
    "core take turns",
    on_device=(INPUT,),
)
