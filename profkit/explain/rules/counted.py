"""Causes that are a count, or a share, of what a step has more of, and rows that grew.

Each is a row of this table: which rows of the ledger it can make longer, the words for what there
is more of (or none), and a remedy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.kernels.categories import COPY_CATEGORIES
from profkit.explain.cells import is_line
from profkit.explain.ledger import Row, Verdict, judge, sum_rows
from profkit.explain.policy import POLICY
from profkit.explain.rules._input import slow_piece
from profkit.explain.rules._threads import uses_python_threads
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
    is_material,
    knobs_for,
    other_side,
    share_of,
    trains_on_host,
)
from profkit.frame.costs import DATA
from profkit.frame.estimate import Estimate
from profkit.text import byte_size, duration, percent, plural, significant
from profkit.vocab import Phase


@dataclass(frozen=True)
class Counted:
    """A rule that claims what its rows grew by, if there is more of something."""

    kind: str
    row: Callable[[Case], Row]
    """Returns the rows that it can make longer, as one."""
    say_more: Callable[[Case, Row], str]
    """Returns what there is more of, in the order of time; empty if there is not."""
    remedy: str
    specific: Specific = Specific.COUNT
    part_ns: Callable[[Case, Row], float | None] = lambda _case, _row: None
    """Returns the part of the growth that it costs, in ns per step; null for all of it."""

    def __call__(self, case: Case) -> Cause | None:
        ledger, row = case.ledger, self.row(case)
        words = self.say_more(case, row) if grew(row, ledger) else ""
        if not words:
            return None
        words += f"; {row.name} went from {from_to(row, ledger)} per step"
        cause = Cause.from_row(self.kind, row, ledger, words, self.remedy, specific=self.specific)
        ns = self.part_ns(case, row)
        if ns is None:
            return cause
        return dataclasses.replace(cause, cost_ns=Estimate(ns), share_of_gap=share_of(ns, ledger))


def _rows(label: str, names: Sequence[str]) -> Callable[[Case], Row]:
    return lambda case: sum_rows(case.ledger, label, names)


_exchange = _rows("backward and exchange", EXCHANGE)
_work = _rows("computing", WORK)


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
    _exchange,
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
    _exchange,
    _more_rounds,
    "exchange once per step: wrap all but the last backward in model.no_sync()",
)


def _fewer_buckets(case: Case, _row: Row) -> str:
    """Compare the buckets of gradients that are as large together, and what backward hides."""
    ledger, before, after = case.ledger, case.before.exchanges, case.after.exchanges
    if before is None or after is None or not 0 < after.buckets < before.buckets:
        return ""
    sent = before.buckets * before.message_bytes, after.buckets * after.message_bytes
    if min(sent) <= 0 or max(sent) > POLICY.same_bytes_ratio * min(sent):
        return ""
    was, now = in_time(ledger, before, after)
    words = (
        f"{was.buckets} buckets of {byte_size(was.message_bytes)} became {now.buckets} of "
        f"{byte_size(now.message_bytes)}"
    )
    for each in ledger.beside:
        if each.name == "allreduce under backward":
            words += f"; what backward hides went from {from_to(each, ledger)} per step"
    return words


def _grown_exchange(case: Case) -> Row:
    """Return backward and exchange together, or the exchange alone.

    A backward that varies may hide by how much both have grown.
    """
    both, exchange = _exchange(case), case.ledger.find(Phase.ALLREDUCE.value)
    if exchange is None or grew(both, case.ledger):
        return both
    is_longer = both.delta.value >= POLICY.place_share * exchange.delta.value
    if is_longer:
        return exchange
    return both


huge_bucket = Counted(
    "huge_bucket",
    _grown_exchange,
    _fewer_buckets,
    "smaller buckets (bucket_cap_mb in DDP, comm_buffer_size in Paddle's DataParallel), so that "
    "the first ones leave while gradients are still computed",
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
    _work,
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
    moves_data = _moving_ns(case) >= POLICY.place_share * cost(row, ledger).value
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
    _work,
    _more_launches,
    "do more in each call: whole tensors in place of loops over their parts, fused operators, "
    "a compiler (torch.compile, paddle.jit.to_static), CUDA graphs, larger batches",
    Specific.WORK,
)


def _moving_ns(case: Case) -> float:
    """Return how much longer a captured step casts and copies between layouts."""
    before, after = case.before.windows, case.after.windows
    if before and after:
        return after.moving_ns - before.moving_ns
    return 0.0


def _more_moving(case: Case, _row: Row) -> str:
    before, after = case.before.windows, case.after.windows
    if before is None or after is None or not is_material(_moving_ns(case), case.ledger):
        return ""
    was, now = in_time(case.ledger, before, after)
    return (
        f"casts and layout copies went from {duration(was.moving_ns)} to {duration(now.moving_ns)} "
        f"per captured step, {significant(was.moving_calls)} to {significant(now.moving_calls)} "
        "calls"
    )


def _moving_part(case: Case, row: Row) -> float | None:
    """Return what they take; if that is most of the growth, they slow other work, too."""
    ns = _moving_ns(case)
    if ns > POLICY.place_share * cost(row, case.ledger).value:
        return None
    return ns


layout_copies = Counted(
    "layout_copies",
    _work,
    _more_moving,
    "keep one layout throughout (channels_last for model and batch alike), and no .contiguous(), "
    ".permute() or .to() inside the model that undoes another",
    Specific.OPERATOR,
    _moving_part,
)


def _more_pageable(case: Case, _row: Row) -> str:
    """Use the names of the copies in kernel windows; without windows, use the setting."""
    ledger, windows, known = case.ledger, case.after.windows, 0.0
    settings = [knob for knob in knobs_for(case, Phase.H2D.value) if knob.startswith("pin")]
    if windows is None or windows.pageable_share is None:
        seen = "no kernels were captured that would show it"
        if settings:
            return "; ".join([seen, *settings])
        return ""
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
    _rows("copies to the device", [Phase.H2D.value]),
    _more_pageable,
    "pin the batches (pin_memory=True, use_shared_memory in Paddle) and copy them with "
    "non_blocking=True",
    Specific.TIME,
)


# Cores.
def _more_worker_cores(case: Case, row: Row) -> str:
    before, after, waiting = case.before.load, case.after.load, case.ledger.find(DATA)
    if before is None or after is None or not after.full:
        return ""
    if after.workers < before.workers + POLICY.added_worker_cores:
        return ""
    if waiting is not None and waiting.delta.value > row.delta.value:
        return ""
    was, now = in_time(case.ledger, before, after)
    words = (
        f"loader workers went from {significant(was.workers, 2)} to {significant(now.workers, 2)} "
        f"cores of {significant(now.cores, 2)}, "
        f"{significant((now.own or 0) + now.workers, 2)} with the ranks themselves{now.where}"
    )
    piece, first, then = slow_piece(case, 0.0), case.before.loader, case.after.loader
    if first is None or then is None or piece not in then.pieces:
        return words
    taken = (duration(side.pieces.get(piece, 0.0)) for side in in_time(case.ledger, first, then))
    words += f"; to {piece} a step's batches takes them {' and then '.join(taken)}"
    for cell in case.cells.told(gains=False):
        if cell.row == DATA and is_line(cell):
            return f"{words}, longer at {cell.where}"
    return words


def _taken_by_workers(case: Case, row: Row) -> float | None:
    """Return the least of the growth and of what the workers' added cores can take of a step."""
    before, after = case.before.load, case.after.load
    if before is None or after is None:
        return None
    step = case.ledger.samples_per_step
    taken_ns = (after.workers - before.workers) * case.ledger.total.target.value * step
    if taken_ns >= row.delta.value * step:
        return None
    return taken_ns


loader_contention = Counted(
    "loader_contention",
    _rows("computing", COMPUTE),
    _more_worker_cores,
    "make a batch cheaper if its pieces take longer; else fewer workers, or one thread in each "
    "(torch.set_num_threads(1), OMP_NUM_THREADS=1, cv2.setNumThreads(0))",
    Specific.PROCESS,
    _taken_by_workers,
)


def _fewer_cores(case: Case, _row: Row) -> str:
    before, after = case.base.environment.get("cpu_count"), case.target.environment.get("cpu_count")
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


def _rows_of_cores(case: Case) -> Row:
    names = [*COMPUTE, DATA, Phase.ALLREDUCE.value] if trains_on_host(case) else [DATA]
    return sum_rows(case.ledger, "computing, data and exchange", names)


few_cores = Counted(
    "few_cores",
    _rows_of_cores,
    _fewer_cores,
    "give each rank cores of its own (taskset, --cpus, the launcher's binding); two ranks on one "
    "core take turns",
)


def _grown_rows(case: Case) -> Row:
    """Return the rows that grew of those in which the loop runs Python."""
    names, base_ns = [], case.ledger.total.base.value
    for each in case.ledger.rows:
        if each.name in (*WORK, DATA) and judge(each.delta, base_ns) is Verdict.REGRESSION:
            names.append(each.name)
    return sum_rows(case.ledger, ", ".join(names), names)


def _more_python(case: Case, _row: Row) -> str:
    before, after = case.before.load, case.after.load
    if before is None or after is None or not uses_python_threads(before, after):
        return ""
    was, now = in_time(case.ledger, before.python_threads or 0.0, after.python_threads or 0.0)
    return (
        f"Python threads other than the main one went from {significant(was, 2)} to "
        f"{significant(now, 2)} cores{after.where}, and Python runs one thread at a time"
    )


interpreter_lock = Counted(
    "interpreter_lock",
    _grown_rows,
    _more_python,
    "move the thread's work into a process of its own (multiprocessing), or into calls that "
    "release the interpreter's lock",
    Specific.LOCK,
)
