"""Noise between runs: the part of a change that the machine may have made.

Steps of one run share the state of the machine. So one run per side shows that two runs differ, and
not why. A machine that is slower makes all work take longer by some factor, and lets threads wait
for a core. What a row grew by beyond that is a change of the job.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from profkit.analysis.config_join import COMPUTE
from profkit.analysis.doing import DISK_WORDS
from profkit.command_words import LEFT_OUT
from profkit.explain.cell_steps import When
from profkit.explain.cells import Cell, Cells
from profkit.explain.evidence import Evidence
from profkit.explain.ledger import TOTAL, Ledger, Row
from profkit.explain.policy import POLICY
from profkit.explain.rules.base import Cause, Specific
from profkit.explain.slowness import Slowness, find_slowness
from profkit.explain.verdict import Basis, Between, Evident, Verdict, judge
from profkit.frame.costs import DATA, RunCosts
from profkit.frame.device_times import PhaseClock, is_own
from profkit.frame.phases import UNKNOWN
from profkit.text import percent, plural, safe_text, significant
from profkit.trace import Trace
from profkit.vocab import Phase

if TYPE_CHECKING:
    from profkit.explain.slowness import Slowness

QUEUE = "queue"
"""The piece of a batch that is not its making: it lies ready."""

_ON_HOST = (DATA, Phase.OTHER.value, UNKNOWN)
"""The rows of a run with device times in which the host works, or waits."""

_SURE = (Verdict.REGRESSION, Verdict.IMPROVEMENT)


def judge_between(ledger: Ledger, bases: Sequence[Evidence], targets: Sequence[Evidence]) -> Ledger:
    """Return the ledger with what is known of the noise between its runs."""
    has_repeats = max(len(bases), len(targets)) > 1
    if bases[0].trace.is_part:  # two parts of one run: it met both on one machine
        return ledger
    between = Between(Basis.REPEATS) if has_repeats else None
    if has_repeats and _took_turns(bases, targets):
        return dataclasses.replace(ledger, between=between)
    if ledger.unlike or judge(ledger.total.delta, ledger.total.base.value) not in _SURE:
        unsure = frozenset() if has_repeats else frozenset(_unsure_rows(ledger, bases, targets))
        return dataclasses.replace(ledger, between=between, unsure_rows=unsure)
    slow, quick = targets, bases
    if ledger.total.delta.value < 0:
        slow, quick = bases, targets
    slowness = find_slowness(ledger, slow, quick)
    machine_ns, carried = _split(ledger, slowness, quick)
    between = Between(slowness.basis, None if has_repeats else machine_ns, carried)
    if not carried:
        words = doubt_words(
            slowness, "target" if slow is targets else "base", bases[0].trace, targets[0].trace
        )
        between = dataclasses.replace(between, doubt=words)
    return dataclasses.replace(ledger, between=between)


def _unsure_rows(
    ledger: Ledger, bases: Sequence[Evidence], targets: Sequence[Evidence]
) -> Iterator[str]:
    """Yield the rows, and their parts, whose change may be the machine's."""
    known: dict[bool, Slowness] = {}
    for row in ledger.rows:
        is_whole_unsure = False
        for part in (row, *row.inside):
            if judge(part.delta, ledger.total.base.value) not in _SURE:
                continue
            is_gain = part.delta.value < 0
            slow, quick = (bases, targets) if is_gain else (targets, bases)
            if is_gain not in known:
                known[is_gain] = find_slowness(ledger, slow, quick, with_earlier=False)
            allowed_ns = _allowed_ns(ledger, part, known[is_gain], quick, is_gain=is_gain)
            is_unsure = is_whole_unsure or abs(part.delta.value) <= allowed_ns
            if is_unsure:
                yield part.name
            if part is row:
                is_whole_unsure = is_unsure


def carry(ledger: Ledger, causes: Sequence[Cause], cells: Cells) -> Ledger:
    """Return the ledger with what no machine makes, if that is most of the change.

    Causes that are counted are that, and cells of long steps with a period, of a sleep, or of more
    than the slowest machine makes.
    """
    delta, base_ns = ledger.total.delta.value, ledger.total.base.value
    is_open = judge(ledger.total.delta, base_ns) not in _SURE
    if ledger.unlike or not base_ns > 0:
        return ledger
    sides = []
    for is_gain in (False, True):
        sides.append(_evidence(ledger, causes, cells, is_gain=is_gain))
    own, other = sides if delta >= 0 else reversed(sides)
    least_ns = max(POLICY.carried_share * abs(delta), POLICY.material_share * base_ns)
    carries = own.ns - other.ns >= least_ns  # what only moved between rows is no change
    if not carries and is_open:  # the machine may hide a change as well as make one
        own, other = sorted(sides, key=lambda side: -side.ns)
        carries = own.ns >= max(POLICY.evident_share * base_ns, 2 * other.ns)
    if not carries:
        return ledger
    between = ledger.between
    if between is not None:
        between = dataclasses.replace(between, carried_by=own.rows, doubt="")
    is_needed = is_open or bool(ledger.doubt)
    return dataclasses.replace(ledger, between=between, evident=own if is_needed else None)


def _evidence(ledger: Ledger, causes: Sequence[Cause], cells: Cells, *, is_gain: bool) -> Evident:
    """Return what no machine makes in one direction: by counted causes, or by cells."""
    names: list[str] = []
    counted_ns = evident_ns = 0.0
    for cause in causes:
        low = cause.cost_ns.low if cause.cost_ns else None
        if cause.specific >= Specific.COUNT and cause.is_gain == is_gain and low and low > 0:
            names.append(cause.kind)
            counted_ns += low / ledger.samples_per_step
    least_ns: dict[str, float] = {}
    for cell in cells.told(gains=is_gain):
        if is_evident(cell):
            low_ns = min(abs(cell.delta.low or 0.0), abs(cell.delta.high or 0.0))
            least_ns[cell.row] = least_ns.get(cell.row, 0.0) + low_ns
    for row, ns in least_ns.items():
        # If the other run has such steps that were not found there, the rest of the row has less.
        net_ns = sum(cell.ns for cell in cells.all if cell.row == row) * (1 - 2 * is_gain)
        evident_ns += max(0.0, min(ns, net_ns))
        names.append(row)
    return Evident(tuple(dict.fromkeys(names)), max(counted_ns, evident_ns), is_gain)


def is_evident(cell: Cell) -> bool:
    """Return true if no machine makes such a cell, however busy or slow it is."""
    if cell.is_beyond or (cell.steps.when is When.PERIODIC and cell.is_new):
        return True
    is_of_disk = any(words in cell.how for words in DISK_WORDS)
    return cell.is_blocked and not is_of_disk and cell.row not in (DATA, Phase.ALLREDUCE.value)


def find_order(bases: Sequence[Evidence], targets: Sequence[Evidence]) -> Iterator[str]:
    """Yield a caveat if repeats ran one side after the other."""
    if max(len(bases), len(targets)) > 1 and not _took_turns(bases, targets):
        yield (
            "the runs of one side were before those of the other: if the machine changed in "
            "between, that is part of the difference; 'profkit run --repeats' takes turns"
        )


def _created_ns(run: Evidence) -> int:
    return run.trace.manifest.created_ns


def _took_turns(bases: Sequence[Evidence], targets: Sequence[Evidence]) -> bool:
    """Return true unless all runs of one side began before those of the other."""
    before, after = [*map(_created_ns, bases)], [*map(_created_ns, targets)]
    return max(before) >= min(after) and max(after) >= min(before)


def _split(
    ledger: Ledger, slowness: Slowness, quick: Sequence[Evidence]
) -> tuple[float, tuple[str, ...]]:
    """Return how much the machine may have changed, and the rows that carry a verdict.

    There are none if the rest is too little. What some rows lost is no part of the rest.
    """
    is_gain = ledger.total.delta.value < 0
    base = ledger.total.base.value
    machine_ns, carried_ns = 0.0, 0.0
    carried = []
    for row in ledger.rows:
        before, after = (row.target, row.base) if is_gain else (row.base, row.target)
        grown_ns = after.value - before.value
        allowed_ns = _allowed_ns(ledger, row, slowness, quick, is_gain=is_gain)
        machine_ns += allowed_ns
        if grown_ns < 0:
            carried_ns += grown_ns
        elif grown_ns > allowed_ns:
            carried_ns += grown_ns - allowed_ns
            if judge(row.delta, base) in _SURE:
                carried.append((grown_ns - allowed_ns, row.name))
    least_ns = POLICY.material_share * base
    if slowness.basis in (Basis.REPEATS, Basis.DEVICE):
        least_ns = 0.0  # the interval, or what is known of twins, holds the rest of the noise
    if carried_ns <= 0 or carried_ns < least_ns:
        return machine_ns, ()
    largest = max((over_ns for over_ns, _ in carried), default=0.0)
    names = [name for over_ns, name in carried if over_ns >= largest / 2]
    return machine_ns, tuple(names) or (TOTAL,)


def _allowed_ns(
    ledger: Ledger, row: Row, slowness: Slowness, quick: Sequence[Evidence], *, is_gain: bool
) -> float:
    """Return by how much the machine may have made a row longer, in ns per sample and rank.

    The row is longer in the base if it `is_gain`. Waits for a core are spread over the rows as time
    is.
    """
    costs = ledger.target if is_gain else ledger.base
    before, after = (row.target, row.base) if is_gain else (row.base, row.target)
    total_ns = max(ledger.total.base.value, ledger.total.target.value)
    waited_ns = slowness.waited_ns * max(0.0, after.value) / total_ns
    samples = max(1, int(costs.samples.sum()))
    if costs.clock is PhaseClock.DEVICE and row.name not in _ON_HOST and row.name in costs.host:
        # The device waits only for launches that take longer than its own work.
        launched_ns = float(costs.host[row.name].sum()) / samples
        late_ns = launched_ns * (1 + slowness.host) + waited_ns - before.value
        return max(slowness.device * before.value, late_ns, 0.0)
    behind_ns = 0.0
    if row.name == DATA:
        behind_ns = _making_ns(quick, costs)
    elif row.name == Phase.ALLREDUCE.value:
        for name in COMPUTE:
            behind_ns += float(costs.parts[name].sum()) / samples if name in costs.parts else 0.0
    longer_ns = slowness.host * max(0.0, before.value) + slowness.uneven * behind_ns
    return longer_ns + waited_ns


def _making_ns(quick: Sequence[Evidence], costs: RunCosts) -> float:
    """Return how long the loader makes the batch of a sample, which a wait for it depends on.

    If nobody timed the loader, it may take as long as the step.
    """
    step_samples = max(1.0, float(costs.samples.sum()) / max(1, costs.steps * costs.ranks))
    loader = quick[0].loader
    if loader is None:
        return float(costs.wall_ns.sum()) / max(1, int(costs.samples.sum()))
    making_ns = sum(ns for piece, ns in loader.pieces.items() if piece != QUEUE)
    return making_ns / max(1, loader.workers) / step_samples


# The words for a change that the machine may have made, and the command that repeats it.
LONGEST_COMMAND = 120
"""A longer command is not repeated in a sentence."""

BUSY_SHARE = 0.05
"""From this share on, the load by other processes is worth a sentence."""


def doubt_words(slowness: Slowness, side: str, base: Trace, target: Trace) -> str:
    """Return why the machine may be behind a change, and what tells; `side` is the slower one."""
    state, basis = slowness.state, slowness.basis
    slow = base if side == "base" else target
    reasons = []
    if basis is Basis.EARLIER and slowness.spread is not None:
        half, runs = slowness.spread
        reasons.append(
            f"by {plural(runs, 'earlier run')} of the same job, two of its runs differ by up to "
            f"{percent(half)} in 95 % of cases"
        )
    elif basis is Basis.READINGS:
        usual = percent(slowness.usual + POLICY.material_share, 0)
        reasons.append(f"two runs on a quiet {_kind_of_machine(slow)} may differ by {usual}")
    elif basis is Basis.DEVICE:
        usual = percent(slowness.device + POLICY.material_share, 0)
        reasons.append(
            f"two runs on one device may differ by {usual}, and more if launches are late"
        )
    elif basis is Basis.NOTHING:
        reasons.append(f"nothing was recorded of what else the {side}'s machine did")
    if state is not None and state.share_of_others >= BUSY_SHARE:
        words = (
            f"other processes used {significant(state.others, 2)} of "
            f"{significant(state.cores, 2)} cores during the {side}"
        )
        if state.waited and state.waited >= BUSY_SHARE:
            waited = significant(state.waited, 2)
            words += f", whose threads together waited {waited} s per second for a core"
        reasons.append(words)
    if slowness.slower:
        reasons.append(
            f"a probe of a core or of memory took {percent(slowness.slower, 0)} longer before and "
            f"after the {side}"
        )
    if basis is Basis.REPEATS:
        return (
            f"the {side}'s machine was busier or slower, and that may be the change: "
            f"{'; '.join(reasons)}; "
            f"repeat the runs of both sides in turn: {repeat_command(base, target)}"
        )
    return (
        "the interval holds the noise within each run, and one run per side cannot tell this "
        f"change from the machine: {'; '.join(reasons)}; repeat: {repeat_command(base, target)}"
    )


def _kind_of_machine(trace: Trace) -> str:
    is_virtual = trace.manifest.environment.get("virtual")
    if is_virtual is None:
        return "machine that may be a virtual one"
    return "virtual machine" if is_virtual else "machine"


def repeat_command(base: Trace, target: Trace) -> str:
    """Return the command that repeats both sides in turn, as far as their commands are known."""
    groups = "profkit explain BASE1,BASE2,BASE3 TARGET1,TARGET2,TARGET3"
    if not (is_own(base) and is_own(target)):
        return f"give several runs per side: {groups}"
    first, second = _command_of(base), _command_of(target)
    if not first or not second:
        return f"record each side three times: {groups}"
    is_one_command = first == second
    if len(first) > LONGEST_COMMAND or len(second) > LONGEST_COMMAND:
        first, second = "BASE COMMAND", "TARGET COMMAND"
    if is_one_command:
        second = second.removeprefix("TARGET ")
        return f"with the code of each side, profkit run --repeats 3 --name NAME -- {second}"
    quoted = shlex.quote(first)
    if " " in first and not set(first) & set('"$`\\!'):
        quoted = f'"{first}"'
    return f"profkit run --repeats 3 --against {quoted} -- {second}"


def _command_of(trace: Trace) -> str:
    """Return the command of a run as a shell reads it; empty if it is not known in full."""
    words = trace.manifest.config.get("command")
    if not isinstance(words, list) or LEFT_OUT in " ".join(map(str, words)):
        return ""
    if words and str(words[0]).endswith(".py"):  # recorded from inside the job
        words = ["python", *words]
    return safe_text(shlex.join(map(str, words)))
