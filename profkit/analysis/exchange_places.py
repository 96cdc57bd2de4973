"""The exposed exchange by dimension, operation, phase around it, and module.

Each wait of a rank is for one collective, the one that ends where the wait ends. So the waits of
all places add up to the exposed exchange, and nothing is counted twice.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profkit.frame.columns import (
    names_and_codes,
    places_of_ranks,
    rows_of_steps,
    split_ranks,
)
from profkit.frame.estimate import Floats, Ints
from profkit.frame.exchange import Matched, exposed_windows, match_collectives
from profkit.frame.intervals import covered_each
from profkit.frame.pipelines import MESSAGES
from profkit.vocab import PIPELINE_MESSAGES, Phase

BETWEEN = "between phases"
"""The place of a wait that is in no forward and in no backward."""

EXPOSED, WAITING, TRANSFER, IDLE = (
    "exposed",
    "waiting for another rank",
    "transfer",
    "nothing under way",
)
"""All of a wait, or its parts if every collective was seen on all of its ranks."""

_AROUND = (Phase.FORWARD.value, Phase.BACKWARD.value, BETWEEN)


class Place(NamedTuple):
    """A kind of collective; the dimension and the module are empty if they are not known."""

    dimension: str
    op: str
    around: str
    """The phase in which it is waited for, or begun if nobody waits."""
    module: str = ""

    @property
    def words(self) -> str:
        where = self.around if self.around == BETWEEN else f"in {self.around}"
        return f"{self.op} {where}" + (f" ({self.dimension})" if self.dimension else "")


class Waits(NamedTuple):
    """The waits of ranks, each with the collective that it is for."""

    rank: Ints
    step: Ints
    start: Ints
    end: Ints
    row: Ints
    """The collective, by its place in the rows of `Matched`."""
    place: Ints
    """The number of its place."""
    exposed: Floats
    flying: Floats
    """The part of the wait in which a collective of the rank was under way."""
    moving: Floats
    """The part in which one was being sent."""


@dataclass(frozen=True, eq=False)
class Places:
    """The collectives of some steps by place, and the waits for them."""

    places: tuple[Place, ...]
    waits: Waits
    found: Matched
    place: Ints
    """The number of the place of each collective in `found`."""
    ranks: int
    steps: Ints

    @property
    def is_complete(self) -> bool:
        """True if all collectives were seen on all of their ranks."""
        return self.found.count == self.found.matched_count

    @functools.cached_property
    def unknown(self) -> frozenset[str]:
        """The dimensions whose waits cannot be split into waiting and transfer.

        Some of their collectives were not seen on all of their ranks, or one of another dimension
        that was not was under way during a wait.
        """
        found, waits = self.found, self.waits
        names = np.array([place.dimension for place in self.places])
        unknown = set(names[self.place[~found.matched]].tolist())
        for rank in np.unique(found.rank[~found.matched]).tolist():
            mine, own = ~found.matched & (found.rank == rank), waits.rank == rank
            opens, closes = waits.start[own], waits.end[own]
            crossed = covered_each(found.start[mine], found.end[mine], opens, closes) > 0
            unknown.update(names[waits.place[own][crossed]].tolist())
        return frozenset(unknown)

    def by_step(self, *, split: bool) -> dict[tuple[Place, str], Ints]:
        """Return the exposed time of each place by step, as sums over the ranks, or its parts."""
        waits, steps, count = self.waits, self.steps, len(self.places)
        kinds = {EXPOSED: waits.exposed}
        if split:
            # Rounded before they are subtracted, so that the parts add up to the wait.
            flying, moving = np.rint(waits.flying), np.rint(waits.moving)
            kinds = {WAITING: flying - moving, TRANSFER: moving, IDLE: waits.exposed - flying}
        key = waits.place * len(steps) + np.searchsorted(steps, waits.step)
        parts = {}
        for kind, ns in kinds.items():
            sums = np.bincount(key, weights=ns, minlength=count * len(steps))
            table = sums.astype(np.int64).reshape(count, len(steps))
            for place, row in zip(self.places, table, strict=True):
                if row.any():
                    parts[place, kind] = row
        return parts


def is_sharded(collectives: pa.Table) -> bool:
    """Return true if places say more about the exchange than its ranks do."""
    dimensions = pc.unique(collectives["dimension"].drop_null())
    ops = set(pc.unique(collectives["op"].cast(pa.string())).to_pylist())
    has_modules = collectives["module"].null_count < len(collectives)
    return len(dimensions) > 1 or has_modules or not ops.isdisjoint(MESSAGES)


def describe_unmatched(found: Matched) -> str:
    """Return how many collectives lack a rank, and of which communicator most are."""
    rows = found.rows.filter(pa.array(~found.matched))
    names, codes = names_and_codes(rows["communicator"])
    firsts = np.unique(found.group[~found.matched], return_index=True)[1]
    counts = np.bincount(codes[firsts])
    most = int(np.argmax(counts))
    return (
        f"{len(firsts):,} of {found.count:,} collectives were not seen on all of their ranks "
        f"({int(counts[most]):,} of them by the communicator {names[most]})"
    )


def find_places(collectives: pa.Table, spans: pa.Table, used: Ints) -> Places | None:
    """Return the collectives of the used steps by place; `None` if there are none."""
    found = match_collectives(collectives, used)
    if not found.count or not len(used):
        return None
    windows = split_ranks(exposed_windows(spans, used).sort_by("start_ns"))
    outer = split_ranks(_outer_phases(rows_of_steps(spans, used)).sort_by("start_ns"))
    begun = np.zeros(len(found.rank), dtype=np.int64)
    parts = []
    of_ranks = places_of_ranks(found.rank)
    for rank, mine in of_ranks.items():
        own, phases = windows[rank], outer[rank]
        begun[mine] = _phase_at(found.start[mine], phases)
        row = _match_waits(own, found, mine)
        opens, closes = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        start, end = found.start[mine], found.end[mine]
        sent_from = np.maximum(start, end - found.transfer[mine])
        around = _phase_at(opens, phases)
        flying = covered_each(start, end, opens, closes)
        moving = covered_each(sent_from, end, opens, closes)
        waiter = np.full(len(row), rank)
        step = own["step"].to_numpy()
        parts.append((waiter, step, opens, closes, row, around, flying, moving))
    waiter, step, start, end, row, around, flying, moving = map(
        np.concatenate, zip(*parts, strict=True)
    )
    numbers: dict[Place, int] = {}
    place = _number_places(numbers, found.rows, begun)
    waited = _number_places(numbers, found.rows.take(row), around)
    exposed = (end - start).astype(np.float64)
    waits = Waits(waiter, step, start, end, row, waited, exposed, flying, moving)
    return Places(tuple(numbers), waits, found, place, len(of_ranks), used)


def _number_places(numbers: dict[Place, int], rows: pa.Table, around: Ints) -> Ints:
    """Return the number of each row's place; new places are added to `numbers`."""
    keys, texts = [np.asarray(around, dtype=np.int64)], []
    for name in ("dimension", "op", "module"):
        known, codes = names_and_codes(rows[name])
        texts.append(["", *known])
        keys.append(codes + 1)  # no name has the code -1
    places, found = np.unique(np.stack(keys), axis=1, return_inverse=True)
    own = []
    for phase, *codes in places.T.tolist():
        dimension, op, module = (text[code] for text, code in zip(texts, codes, strict=True))
        place = Place(dimension, op, _AROUND[phase], module)
        own.append(numbers.setdefault(place, len(numbers)))
    return np.array(own, dtype=np.int64)[found.ravel()]


def _outer_phases(spans: pa.Table) -> pa.Table:
    """Return the forwards and backwards, on the clock of the exposed exchange."""
    is_work = pc.is_in(spans["phase"].cast(pa.string()), pa.array(_AROUND[:2]))
    found = spans.filter(pc.and_(is_work, pc.equal(spans["depth"], 0)))
    columns = {name: found[name] for name in ("rank", "phase", "start_ns", "end_ns")}
    if "device_start_ns" in found.schema.names:
        for name in ("start_ns", "end_ns"):
            columns[name] = pc.coalesce(found[f"device_{name}"], found[name])
    return pa.table(columns)


def _phase_at(times: Ints, phases: pa.Table) -> Ints:
    """Return the place in `_AROUND` of the phase around each time, of one rank's phases."""
    starts, ends = phases["start_ns"].to_numpy(), phases["end_ns"].to_numpy()
    if not len(starts):
        return np.full(len(times), _AROUND.index(BETWEEN))
    code = pc.index_in(phases["phase"].cast(pa.string()), pa.array(_AROUND)).to_numpy()
    at = np.searchsorted(starts, times, side="right") - 1
    inside = (at >= 0) & (times < ends[np.maximum(at, 0)])
    return np.where(inside, code[np.maximum(at, 0)], _AROUND.index(BETWEEN))


def _match_waits(windows: pa.Table, found: Matched, mine: Ints) -> Ints:
    """Return the collective of a rank that each of its waits is for.

    A wait has the operation's name, and ends with it. The end of a row may be noted a moment after
    the wait, by another thread. Before messages of a pipeline, the rank lists and sends them.
    """
    op_names, ops = names_and_codes(found.rows["op"])
    names, codes = names_and_codes(windows["name"])
    ops = ops[mine]
    opens, closes = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    row = np.zeros(len(codes), dtype=np.int64)
    for code in np.unique(codes).tolist():
        own, name = codes == code, ["", *names][code + 1]
        sends = name == PIPELINE_MESSAGES
        wanted = MESSAGES if sends else (name,)
        kinds = [place for place, each in enumerate(op_names) if each in wanted]
        chosen = mine[np.isin(ops, kinds)]
        if not len(chosen):  # a wait for several, as for the buckets of a backward
            chosen = mine
        times, until = (found.start, opens[own]) if sends else (found.end, closes[own])
        chosen = chosen[np.argsort(times[chosen], kind="stable")]
        after = np.searchsorted(times[chosen], until).clip(max=len(chosen) - 1)
        if not sends:
            before = np.maximum(after - 1, 0)
            late = np.abs(times[chosen[after]] - until)
            early = np.abs(until - times[chosen[before]])
            has_begun = found.start[chosen[after]] < until
            after = np.where(has_begun & (late < early), after, before)
        row[own] = chosen[after]
    return row
