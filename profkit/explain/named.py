"""Names for cells that no rule claims: words of a table, with what to look at.

The remedy follows the cell. A line of the job's own code is looked at before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profkit.analysis.doing import ASLEEP, NO_CORE
from profkit.explain.cell_steps import When
from profkit.explain.cell_words import parts_of, rank_words
from profkit.explain.cells import Cell, is_line, sum_of
from profkit.explain.evidence import step_elements
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import (
    Case,
    Cause,
    Specific,
    computing_factor,
    from_to,
    here,
    input_is_hidden,
    is_clear,
    knobs_for,
    share_of,
    trains_on_host,
)
from profkit.frame.costs import DATA, REST
from profkit.frame.estimate import scale
from profkit.frame.phases import UNKNOWN
from profkit.text import duration, significant
from profkit.vocab import PIPELINE_BATCHES, PIPELINE_SCHEDULE, Phase

EXCHANGE, OTHER = Phase.ALLREDUCE.value, Phase.OTHER.value

LATE_RANK, DRIFT, WITHOUT_CORE = "late_rank", "drift", "no_core"
UNNAMED = ""
"""A phase that computes longer has no name but the cell's own words."""

CHECKPOINT = "checkpoint"
OF_PIPELINE = (PIPELINE_SCHEDULE, PIPELINE_BATCHES)

REMEDIES = {
    LATE_RANK: "see what only {ranks} does there; if it does the same as the others, compare its "
    "host, cores, disk and clock with theirs",
    DRIFT: "look at what grows with the run: lists and graphs that are kept (loss without "
    ".item()), logs, fragmented memory, temperature and clocks, a cache that fills up",
    WITHOUT_CORE: "see what takes the cores (top): other jobs, the loader's workers, or the job's "
    "own threads; give the job cores of its own (taskset, cgroups, an exclusive allocation)",
    "input_stalls": "see which steps stall and what their batches need: a new file or shard, a "
    "slow sample, a full cache; batches that are made ahead (num_workers, prefetch_factor) "
    "even out short stalls",
    "input_bound": "make batches in more workers, further ahead; then see which piece is left",
    "exposed_communication": "larger batches or gradient accumulation, smaller first buckets, and "
    "a look at the links (profkit ceilings)",
    "time_outside_phases": "look at what the loop does there: loss, clipping, logging, metrics, "
    "files",
    "checkpoint_in_training": "save less often, or in the background: copy the weights and write "
    "them on a thread (torch.distributed.checkpoint.async_save, paddle.async_save)",
    "pipeline_schedule": "divide the batch into fewer microbatches if there are more of them now: "
    "the schedule takes time for each",
    "evaluation_in_training": "evaluate and save less often, or in the background; and exclude it "
    "from the throughput that you publish",
    "slow_line": "look at this line and at what it calls: its code, its inputs, and what it waits "
    "for",
}
"""What to try, by the name of a cell."""

KINDS = tuple(REMEDIES)
"""The names that a cell can have."""

_LINES = "'profkit run --lines on' shows its line"
_ASLEEP = "it waits there: for a file, a lock, another process or a timer"

MIN_RATIO_TO_COMPUTING = 1.5
"""On a full machine, the exchange must grow by more than this times the factor of computing."""


def kind_of(cell: Cell) -> str:
    """Return the name of a cell."""
    is_without_core = cell.how == NO_CORE and not cell.where
    if cell.ranks or is_without_core:
        return LATE_RANK if cell.ranks else WITHOUT_CORE
    if cell.steps.when is When.GROWING:
        return DRIFT
    if cell.row == DATA:
        return ("input_bound", "input_stalls")[cell.is_counted]
    if cell.row == OTHER and cell.where == CHECKPOINT:
        return "checkpoint_in_training"
    if cell.row == OTHER and cell.where in OF_PIPELINE:
        return "pipeline_schedule"
    by_row = {
        EXCHANGE: "exposed_communication",
        OTHER: "evaluation_in_training",
        UNKNOWN: "time_outside_phases",
        REST: UNNAMED,
    }
    by_place = "slow_line" if is_line(cell) else UNNAMED
    return by_row.get(cell.row, by_place)


def is_clear_cell(cell: Cell, case: Case) -> bool:
    """Return true if a cell is surely there, and no machine may have made it by chance."""
    row = case.ledger.find(cell.row)
    if row is None or not cell.is_sure:
        return False
    is_evident = cell.is_counted or cell.is_blocked or bool(cell.ranks)
    if cell.row in case.ledger.unsure_rows and not is_evident:
        return False
    return is_evident or is_clear(cell.delta, case.ledger)


def name_cells(cells: Sequence[Cell], case: Case) -> Cause | None:
    """Return a cell, or those of a rank, as a cause with the name of the largest.

    The result is `None` if its time is known to cost nothing, or if its row says it all.
    """
    cell, ledger = max(cells, key=lambda each: each.ns), case.ledger
    if ledger.find(cell.row) is None or (cell.row == DATA and input_is_hidden(case)):
        return None
    if cell.row == EXCHANGE and _lacks_cores(cell, case):
        return None
    kind = kind_of(cell)
    is_schedule = kind == "pipeline_schedule"
    if is_schedule and not any(name in case.before.other_ns for name in OF_PIPELINE):
        return None  # the base's schedule was not recorded
    if kind == UNNAMED:
        return None
    cost = scale(sum_of(cells), ledger.samples_per_step)
    words: list[str] = []
    rows: list[str] = []
    for each in sorted(cells, key=lambda each: -each.ns):
        words += _describe(each, case)
        rows += [each.row] if each.ns > 0 else []
    words += [*_elements_since(cell, case), *knobs_for(case, cell.row)]
    if cell.ranks and ledger.find(EXCHANGE) and EXCHANGE not in rows:
        rows.append(EXCHANGE)
    return Cause(
        kind,
        cost,
        share_of(cost.value, ledger),
        "; ".join(words),
        "; ".join(_remedy(kind, cell, case)),
        detail=cell.row if cell.ranks else cell.where,
        specific=Specific.TIME,
        rows=tuple(dict.fromkeys(rows)),
        ranks=cell.ranks,
    )


def _describe(cell: Cell, case: Case) -> Iterator[str]:
    """Yield what a cell is, in the order of time."""
    ledger, step = case.ledger, case.ledger.samples_per_step
    name = "time outside all phases" if cell.row == UNKNOWN else cell.row
    if cell.ranks:
        size = duration(abs(cell.ns) * step)
        longer = "less"
        if cell.ns > 0:
            longer = "longer"
        yield f"{here(ledger)}{size} per step {longer} {', '.join(parts_of(cell))}"
        if cell.moved_ns > 0 and cell.ns > 0:
            yield f"{duration(cell.moved_ns * step)} of that are the waits of the others"
        return
    row = ledger.find(cell.row)
    if row is not None:
        yield f"{name} went from {from_to(row, ledger)} per step"
    yield f"{here(ledger)}it is longer {', '.join(parts_of(cell))}"


def _elements_since(cell: Cell, case: Case) -> Iterator[str]:
    """Yield by how much the batches changed in the step from which on it takes longer."""
    run = case.before if case.ledger.turned else case.after
    for read in [*run.figure(step_elements).values()][:1] if cell.steps.when is When.SINCE else []:
        first, then = read[run.used < cell.steps.first], read[run.used >= cell.steps.first]
        if len(first) and len(then) and then.mean() >= POLICY.more_ratio * first.mean():
            size = significant(float(then.mean() / first.mean()), 2)
            yield f"from there on a batch has {size} times as many elements"


def _remedy(kind: str, cell: Cell, case: Case) -> Iterator[str]:
    if is_line(cell):
        yield REMEDIES["slow_line"]
    else:
        yield REMEDIES[kind].format(ranks=rank_words(cell.ranks))
    if cell.how == ASLEEP and cell.row not in (DATA, EXCHANGE):
        yield _ASLEEP
    on_host = trains_on_host(case) or cell.row in (OTHER, UNKNOWN)
    if on_host and not is_line(cell) and case.after.code is None and cell.row != EXCHANGE:
        yield _LINES


def _lacks_cores(cell: Cell, case: Case) -> bool:
    """Return true if the exchange of processors grew on a full machine about as computing did.

    Without a device, the ranks' processors send the messages, and wait for cores as well.
    """
    load, row = case.after.load, case.ledger.find(cell.row)
    if not trains_on_host(case) or row is None or cell.is_counted:
        return False
    if load is None or not load.full:
        return False
    most = MIN_RATIO_TO_COMPUTING * computing_factor(case.ledger)
    return row.base.value > 0 and row.target.value <= most * row.base.value
