"""One module of an FSDP job computes for longer, and the others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.analysis.exchange_places import Places
from profkit.explain.evidence import Evidence
from profkit.explain.exchange_ledger import places_of
from profkit.explain.rules.base import (
    Case,
    Cause,
    all_of,
    here,
    is_material,
    other_side,
    share_of,
)
from profkit.frame.columns import names_and_codes, split_ranks
from profkit.frame.device_clock import Bools
from profkit.frame.estimate import Estimate, Floats, Ints, estimate_ratios, subtract
from profkit.frame.intervals import covered_each
from profkit.text import duration, plural, safe_text
from profkit.vocab import ROOT_MODULE, Phase

MAX_OTHERS_SHARE = 0.3
"""All other modules together grow by at most this share of what one does."""

ALIKE_SHARE = 0.5
"""A rank shares a module's growth if its own is at least this share of the largest."""

EXPLAINS = ("exposed_communication", "late_rank")
_REMEDY = (
    "look at what changed in this module; a kernel window or sampled stacks "
    "(`profkit run --lines on`) show where its time goes"
)
_REMEDY_OF_LAST = (
    "look at what changed in this module, or after it, as in a head or a loss; a kernel window or "
    "sampled stacks (`profkit run --lines on`) show where the time goes"
)


class Growth(NamedTuple):
    """The module that grew most, in ns per step of the base's batch."""

    module: str
    ranks: tuple[int, ...]
    """The ranks on which it grew."""
    before_ns: float
    after_ns: float
    cost_ns: Estimate
    others_ns: float
    """The growth of the other modules together on the same ranks; negative if they shrank."""
    is_last: bool
    """True if the times hold what is computed after the module as well."""


def find(case: Case) -> Cause | None:
    """Compare the computing of the same modules."""
    ledger = case.ledger
    before, after = case.before.figure(modules_of), case.after.figure(modules_of)
    if before is None or after is None or sorted(before.modules) != sorted(after.modules):
        return None
    if before.ranks != after.ranks:
        return None
    found = _find_growth(case, before, after)
    if found is None or found.cost_ns.low is None or found.cost_ns.low <= 0:
        return None
    if not is_material(found.cost_ns.value, ledger):
        return None
    if abs(found.others_ns) > MAX_OTHERS_SHARE * found.cost_ns.value:
        return None
    takes: Mapping[str, float] = {}
    rows = [Phase.FORWARD.value, Phase.BACKWARD.value]
    if len(found.ranks) < len(after.ranks):
        takes = all_of(*EXPLAINS)
        rows.append(Phase.ALLREDUCE.value)
    return Cause(
        "slow_module",
        found.cost_ns,
        share_of(found.cost_ns.value, ledger),
        _describe(case, found, len(after.modules) - 1, len(after.ranks)),
        _REMEDY_OF_LAST if found.is_last else _REMEDY,
        takes=takes,
        rows=tuple(rows),
    )


def modules_of(evidence: Evidence) -> ModuleTimes | None:
    places = evidence.figure(places_of)
    if places is None:
        return None
    return time_modules(places, evidence.select_used(evidence.basis.spans))


def _find_growth(case: Case, before: ModuleTimes, after: ModuleTimes) -> Growth | None:
    """Return the growth of the module that grew most on a rank.

    The other ranks wait for that one, so the cost is the growth on the ranks that share it.
    """
    ledger = case.ledger
    order = [before.modules.index(name) for name in after.modules]
    base = before.ns[order] * ledger.batch_factor(case.before.step_samples)
    target = after.ns * ledger.batch_factor(case.after.step_samples)
    growth = target.mean(axis=2) - base.mean(axis=2)
    module, worst = np.unravel_index(int(np.argmax(growth)), growth.shape)
    most = growth[module, worst]
    if most <= 0:
        return None
    chosen = growth[module] >= ALIKE_SHARE * most
    sides = [_estimate(side[module, chosen].mean(axis=0)) for side in (base, target)]
    others = growth[:, chosen].sum(axis=0) - growth[module, chosen]
    ranks = [rank for rank, is_chosen in zip(after.ranks, chosen, strict=True) if is_chosen]
    return Growth(
        after.modules[module],
        tuple(ranks),
        sides[0].value,
        sides[1].value,
        subtract(sides[1], sides[0]),
        float(others.mean()),
        after.modules[module] in before.last | after.last,
    )


def _estimate(ns: Floats) -> Estimate:
    (found,) = estimate_ratios(ns[None, :], np.ones((1, len(ns))))
    return found


def _describe(case: Case, found: Growth, others: int, ranks: int) -> str:
    where = "on all ranks"
    if len(found.ranks) < ranks:
        listed = ", ".join(map(str, found.ranks))
        where = f"on {plural(len(found.ranks), 'rank')} ({listed}), which the others wait for"
    what = f"{safe_text(found.module)} computes"
    if found.is_last:
        what = f"{safe_text(found.module)} and what is computed after it take"
    return (
        f"{here(case.ledger)}{what} {duration(found.after_ns)} per step {where}, "
        f"against {duration(found.before_ns)} in the {other_side(case.ledger)}, by the collectives "
        f"around it; the other {plural(others, 'module')} together differ by "
        f"{duration(abs(found.others_ns))}"
    )


GATHER, REDUCE = "all_gather", "reduce_scatter"


# How long each module of an FSDP job computes, by its collectives.
#
# In forward, a module computes from the wait for its weights until the wait for the next weights.
# In backward, it computes until the reduction of its gradients begins. Waits in between do not
# count.
#
# What a parent computes after its last child has no collectives of its own there, such as a head
# or a loss. It counts to that child.
@dataclass(frozen=True, eq=False)
class ModuleTimes:
    """The computing of modules."""

    modules: tuple[str, ...]
    ranks: tuple[int, ...]
    ns: Floats
    """By module, rank and step."""
    last: frozenset[str] = frozenset()
    """The modules whose times hold what is computed after them as well."""


class _Parts(NamedTuple):
    """Parts of a rank's steps in which one module computes."""

    module: Ints
    step: Ints
    opens: Ints
    closes: Ints
    is_outer: Bools
    """True if the part ends with its forward, or begins with its backward."""


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING = _Parts(_NONE, _NONE, _NONE, _NONE, np.zeros(0, dtype=np.bool_))


def time_modules(places: Places, spans: pa.Table) -> ModuleTimes | None:
    """Return the computing of each module, or `None` if the collectives name fewer than two."""
    known, codes = names_and_codes(places.found.rows["module"])
    chosen = np.unique(codes[codes >= 0])  # the columns of a run share their names
    names, codes = [known[code] for code in chosen], np.searchsorted(chosen, codes) - (codes < 0)
    ranks = np.unique(places.found.rank)
    if len(names) < 2:
        return None
    ns, last = np.zeros((len(names), len(ranks), len(places.steps))), set[str]()
    outer = split_ranks(spans.filter(pc.equal(spans["depth"], 0)))
    for place, rank in enumerate(ranks.tolist()):
        own = outer[rank]
        waited = places.waits.rank == rank
        opens, closes = places.waits.start[waited], places.waits.end[waited]
        order = np.argsort(opens, kind="stable")
        forward, backward = _forward(places, codes, own, rank), _backward(places, codes, own, rank)
        last.update(_last_children(names, forward, backward))
        for parts in (forward, backward):
            waiting = covered_each(opens[order], closes[order], parts.opens, parts.closes)
            step = np.searchsorted(places.steps, parts.step)
            np.add.at(ns[:, place], (parts.module, step), parts.closes - parts.opens - waiting)
    return ModuleTimes(tuple(names), tuple(ranks.tolist()), ns, frozenset(last))


def _last_children(names: Sequence[str], forward: _Parts, backward: _Parts) -> Iterator[str]:
    """Yield the modules after which a parent may compute: no sibling or child comes next."""
    for parts in (forward, backward):
        for code in np.unique(parts.module[parts.is_outer]).tolist():
            yield names[code]
    pairs = np.stack([forward.module[:-1], forward.module[1:]])[:, ~forward.is_outer[:-1]]
    for code, following in np.unique(pairs, axis=1).T.tolist():
        name, after = names[code], names[following]
        is_sibling = name.rpartition(".")[0] == after.rpartition(".")[0]
        if not is_sibling and name != ROOT_MODULE and not after.startswith(f"{name}."):
            yield name


def _forward(places: Places, codes: Ints, spans: pa.Table, rank: int) -> _Parts:
    """Return the parts after the waits for weights."""
    waits, kinds = places.waits, np.array([place.op == GATHER for place in places.places])
    chosen = np.flatnonzero((waits.rank == rank) & kinds[waits.place] & (codes[waits.row] >= 0))
    chosen = chosen[np.argsort(waits.start[chosen], kind="stable")]
    begins, ends = _phases(spans, Phase.FORWARD.value)
    start, inside = _phase_of(waits.start[chosen], begins, ends)
    chosen, start = chosen[inside], start[inside]
    if not len(chosen):
        return _NOTHING
    is_last = np.append(start[1:] != start[:-1], True)  # a part of numpy's
    following = np.append(waits.start[chosen][1:], 0)
    closes = np.where(is_last, ends[start], following)
    opens = np.minimum(waits.end[chosen], closes)
    return _Parts(codes[waits.row[chosen]], waits.step[chosen], opens, closes, is_last)


def _backward(places: Places, codes: Ints, spans: pa.Table, rank: int) -> _Parts:
    """Return the parts before gradients are reduced."""
    found = places.found
    is_reduced = pc.equal(found.rows["op"].cast(pa.string()), REDUCE)
    chosen = np.flatnonzero(is_reduced.to_numpy() & (found.rank == rank) & (codes >= 0))
    chosen = chosen[np.argsort(found.start[chosen], kind="stable")]
    begins, ends = _phases(spans, Phase.BACKWARD.value)
    start, inside = _phase_of(found.start[chosen], begins, ends)
    chosen, start = chosen[inside], start[inside]
    if not len(chosen):
        return _NOTHING
    is_first = np.append(True, start[1:] != start[:-1])  # as above
    closes = found.start[chosen]
    opens = np.where(is_first, begins[start], np.append(0, closes[:-1]))
    return _Parts(codes[chosen], found.step[chosen], opens, closes, is_first)


def _phases(spans: pa.Table, phase: str) -> tuple[Ints, Ints]:
    own = spans.filter(pc.equal(spans["phase"].cast(pa.string()), phase)).sort_by("start_ns")
    return own["start_ns"].to_numpy(), own["end_ns"].to_numpy()


def _phase_of(times: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Bools]:
    """Return the number of the last phase that begins before each time, and if it holds it."""
    if not len(begins):
        return np.zeros(len(times), dtype=np.int64), np.zeros(len(times), dtype=np.bool_)
    at = np.searchsorted(begins, times, side="right") - 1
    inside = (at >= 0) & (times <= ends[np.maximum(at, 0)])
    return at, inside
