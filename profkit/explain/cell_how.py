"""How a cell's time is spent: computing, without a core, asleep, or in which kind of call.

Samples of the thread say it best, as they have its state and system call at each line. Otherwise
the processor time of whole processes tells computing from waiting.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from profkit.analysis.doing import ASLEEP, COMPUTING, LOCK, NO_CORE, RUNNING, UNKNOWN, say_most
from profkit.analysis.stacks import FEWEST_SAMPLES
from profkit.explain.cell_samples import (
    NO_FUNCTION,
    Chosen,
    Function,
    Samples,
    choose_workers,
    read_samples,
)
from profkit.explain.cells import Cell, refine
from profkit.explain.evidence import Evidence
from profkit.explain.kernel_ledger import KernelLedger
from profkit.explain.ledger import Ledger
from profkit.explain.policy import POLICY
from profkit.explain.rank_times import EXCHANGE
from profkit.explain.slowness import state_of
from profkit.frame.costs import DATA
from profkit.frame.device_times import PhaseClock
from profkit.vocab import Phase

COMPUTE = (Phase.H2D.value, Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value)

Doings = Mapping[str, float]
"""Time that was added, in ns of a cell, by what the thread did."""


class How(str, Enum):
    """How the time of a cell is spent."""

    COMPUTING = COMPUTING
    NO_CORE = NO_CORE
    BLOCKED = ASLEEP
    DEVICE = "on the device"


class Sides(NamedTuple):
    ledger: Ledger
    before: Evidence
    after: Evidence
    kernels: KernelLedger | None

    @property
    def factor(self) -> float:
        """The factor from ns per sample and rank to ns per step of the base's batch."""
        return self.ledger.samples_per_step

    @property
    def scales(self) -> tuple[float, float]:
        """The factors from a step of each side to one of the base's batch."""
        of = self.ledger.batch_factor
        return of(self.before.step_samples), of(self.after.step_samples)

    def rank_factor(self, cell: Cell) -> float:
        """The factor from a cell's ns to ns per step of one of its ranks."""
        ranks = self.ledger.target.ranks
        return self.factor * ranks / (len(cell.ranks) or ranks)


def divide_by_how(cell: Cell, sides: Sides, doings: Doings) -> tuple[Cell, ...]:
    """Return the cell with how it is spent, in two cells if a large part of it is blocked."""
    if sides.ledger.target.clock is PhaseClock.DEVICE and cell.row in COMPUTE:
        return (dataclasses.replace(cell, how=How.DEVICE.value),)
    if cell.row == EXCHANGE:
        return (cell,)
    found = _by_counters(cell, sides)
    shares = _shares(doings, cell)
    if not shares:
        is_blocked, words = found is How.BLOCKED, found.value if found else ""
        return (dataclasses.replace(cell, how=words, is_blocked=is_blocked),)
    running, blocked, without = _kinds(shares, found)
    # A thread loses its core at any line. One of the loader's is still told from the loop's.
    at_any = cell.where if waits_for_workers(cell, sides) else ""
    parts: tuple[Cell, ...] = (dataclasses.replace(cell, how=say_most(running)),)
    for kind, where in ((blocked, cell.where), (without, at_any)):
        share, is_blocked = sum(kind.values()), kind is blocked
        if share > 1 - POLICY.how_share:
            ns = share * cell.ns if share < POLICY.how_share else cell.ns
            part = refine(parts[-1], ns, how=say_most(kind), where=where, is_blocked=is_blocked)
            parts = (*parts[:-1], *part)
        if share >= POLICY.how_share:
            break
    return parts


def _kinds(shares: Doings, found: How | None) -> tuple[Doings, Doings, Doings]:
    """Return what ran, what was blocked, and what the kernel says had no core."""
    running, blocked, without = dict[str, float](), dict[str, float](), dict[str, float]()
    for words, share in shares.items():
        if words == RUNNING:
            is_told = found in (How.COMPUTING, How.NO_CORE)
            running[found.value if found and is_told else RUNNING] = share
        elif words == NO_CORE:
            without[words] = share
        elif words == COMPUTING or (words == LOCK and found is not How.BLOCKED):
            running[words] = share  # a lock may be that of a thread that computes
        else:
            blocked[words] = share
    return running, blocked, without


def _shares(doings: Doings, cell: Cell) -> Doings:
    """Return the shares of what was added; nothing if samples do not show the cell or states."""
    more = {}
    for words, ns in doings.items():
        if ns > 0 and words != UNKNOWN:
            more[words] = ns
    whole = sum(more.values())
    is_known = abs(doings.get(UNKNOWN, 0.0)) <= (1 - POLICY.how_share) * whole
    if not whole or not is_known or sum(doings.values()) < POLICY.place_share * abs(cell.ns):
        return {}
    return {words: ns / whole for words, ns in more.items()}


def _by_counters(cell: Cell, sides: Sides) -> How | None:
    """Use the processor time of whole processes, which bounds what one of their threads used.

    A cell is blocked if the ranks neither computed nor waited for a core so much longer. It is
    computing if this is nearly all that was added to the host's time.
    """
    known_scale, scale = sides.scales
    known, now = sides.before.own_ns(known_scale), sides.after.own_ns(scale)
    lost_ns = (cell.ns - cell.moved_ns) * sides.rank_factor(cell)
    if known is None or now is None or lost_ns <= 0:
        return None
    ranks = sides.ledger.target.ranks
    own_ns = max(0.0, now - known) * ranks / (len(cell.ranks) or ranks)
    states = []
    for run in (sides.before, sides.after):
        states.append(run.figure(state_of))
    waited_ns = 0.0
    if states[0] is not None and states[1] is not None:
        waits = (states[0].waited or 0.0), (states[1].waited or 0.0)
        step_ns = sides.before.step_ns * sides.scales[0], sides.after.step_ns * sides.scales[1]
        waited_ns = max(0.0, waits[1] * step_ns[1] - waits[0] * step_ns[0])
    is_known = all(state is not None and state.waited is not None for state in states)
    if is_known and own_ns + waited_ns <= (1 - POLICY.how_share) * lost_ns:
        return How.BLOCKED
    gap_ns = abs(sides.ledger.total.delta.value) * sides.factor
    is_most = cell.ns * sides.factor >= POLICY.how_share * gap_ns
    if not is_most:
        return None
    if own_ns >= POLICY.how_share * lost_ns:
        return How.COMPUTING
    if waited_ns >= POLICY.how_share * lost_ns:
        return How.NO_CORE
    return None


def waits_for_workers(cell: Cell, sides: Sides) -> bool:
    """Return true if the loop waits for batches that workers make, on either side."""
    loaders = sides.before.loader, sides.after.loader
    return cell.row == DATA and any(loader and loader.workers for loader in loaders)


def added_in_workers(cell: Cell, sides: Sides) -> Mapping[str, Doings]:
    """Return which lines of the loader's workers a longer wait for them comes from.

    A worker's time is no part of the cell, and other steps than those that it works in wait for
    it. So the cell is divided as what the functions take longer for a step.
    """
    slow, quick = (sides.after, sides.before) if cell.ns > 0 else (sides.before, sides.after)
    scale, known_scale = sides.scales if cell.ns < 0 else sides.scales[::-1]
    mine = choose_workers(slow.trace, slow.used, cell.ranks)
    usual = choose_workers(quick.trace, quick.used, cell.ranks)
    if mine is None:
        return {}
    known: Mapping[Function, Mapping[str, float]] = {}
    longer = 0.0
    if usual is not None:
        known, longer = usual.by_function(), _longer_waits([usual, mine], [usual, mine])
    grown: dict[str, dict[str, float]] = {}
    awake: dict[str, float] = {}
    for function, spent in mine.by_function().items():
        was = known.get(function, {})
        more = {}
        for words in {**spent, **was}:
            more[words] = spent.get(words, 0.0) * scale - was.get(words, 0.0) * known_scale
        is_named = function != NO_FUNCTION and mine.hits(function) >= POLICY.fewest_samples
        if is_named and sum(more.values()) > 0:
            name = f"{mine.words(function)} in the loader's workers"
            grown[name] = more
            awake[name] = (was.get(COMPUTING, 0.0) + was.get(NO_CORE, 0.0)) * known_scale
    _with_waits(grown, awake, longer)
    whole = sum(sum(more.values()) for more in grown.values())
    divided = {}
    for line, more in grown.items():
        divided[line] = {words: abs(cell.ns) * ns / whole for words, ns in more.items()}
    return divided


def host_samples(cell: Cell, sides: Sides, run: Evidence) -> Samples | None:
    """Return the samples of a run, if the thread that trains spends the time of the cell."""
    if sides.ledger.target.clock is PhaseClock.DEVICE and cell.row in COMPUTE:
        return None
    return run.figure(_samples)


def added_by_line(cell: Cell, sides: Sides) -> Mapping[str, Doings]:
    """Return what was added at each function of the job's own code, as its longest line.

    What no line can be told of is under an empty name.
    """
    now = host_samples(cell, sides, sides.after)
    if now is None:
        return {}
    phase, (known_scale, scale) = cell.row, sides.scales
    mine, before = now.select(phase, cell.ranks, cell.long), None
    if cell.long is not None:
        usual, known_scale = now.select(phase, cell.ranks, cell.long, others=True), scale
    elif cell.ranks:
        usual, known_scale = now.select(phase, cell.ranks, None, other_ranks=True), scale
    else:
        before = sides.before.figure(_samples)
        if before is None:
            return {}
        usual = before.select(phase, (), None)
    if cell.ns < 0:  # the lines on which time was spent before, or by the others
        mine, usual, scale, known_scale = usual, mine, known_scale, scale
    share = sides.rank_factor(cell)
    if cell.long is not None:  # the cell is spread over all steps
        share *= len(sides.after.used) / max(1, len(cell.long))
    share *= (1 - cell.moved_ns / cell.ns) or 1.0  # the others' waits are in no sample of this rank
    known, own = usual.by_function(), mine.by_function()
    found: dict[str, dict[str, float]] = {}
    awake: dict[str, float] = {}
    for function in {**own, **known}:
        name, spent, was = "", own.get(function, {}), known.get(function, {})
        if function != NO_FUNCTION and mine.hits(function) >= POLICY.fewest_samples:
            name = mine.words(function)
        more = found.setdefault(name, {})
        for words in {**spent, **was}:
            ns = spent.get(words, 0.0) * scale - was.get(words, 0.0) * known_scale
            more[words] = more.get(words, 0.0) + ns / share
        before_ns = was.get(COMPUTING, 0.0) + was.get(NO_CORE, 0.0)
        awake[name] = awake.get(name, 0.0) + before_ns * known_scale / share
    runs = [before or now, now]
    return _with_waits(
        found, awake, _longer_waits([usual, mine], runs[:: 1 if cell.ns > 0 else -1])
    )


def _longer_waits(chosen: Sequence[Chosen], runs: Sequence[Samples | Chosen]) -> float:
    """Return by how much longer the same work takes because the thread has no core more often.

    Few samples of a row do not tell that; then the run does. Of two parts of one run, they have to.
    """
    pair = [each.waits for each in chosen]
    fewest = FEWEST_SAMPLES
    if runs[0] is runs[1]:
        fewest = 1
    if min(each.samples for each in pair) < fewest:
        pair = [each.waits for each in runs]
    if not all(each.samples for each in pair):
        return 0.0
    usual, mine = (1 - each.share for each in pair)
    return usual / mine - 1 if mine > 0 else math.inf


def _with_waits(
    found: dict[str, dict[str, float]], awake: Mapping[str, float], longer: float
) -> Mapping[str, Doings]:
    """Count as waits for a core what makes the same work longer, and the rest as work.

    Work waits for a core, too: without it, that time would not be there.
    """
    for name, more in found.items():
        added = more.get(COMPUTING, 0.0) + more.get(NO_CORE, 0.0)
        if added > 0:
            waited = min(added, max(0.0, awake[name] * longer))
            more[COMPUTING], more[NO_CORE] = added - waited, waited
    return found


def _samples(run: Evidence) -> Samples | None:
    return read_samples(run.trace, run.used)
