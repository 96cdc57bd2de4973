"""The groups of ranks that communicate, and the numbers of their operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profkit.analysis.whatif.operations import (
    CLIP,
    COMMUNICATES,
    COMPUTES,
    DATA_PARALLEL,
    EMBEDDING,
    GATHER,
    LAYERNORM,
    MESSAGES,
    SCATTER,
    Operations,
    ReplayError,
    arrange,
    key_of,
)
from profkit.analysis.whatif.run_operations import ALONE
from profkit.analysis.whatif.template import Template, match_messages
from profkit.importers.reading.columns import NULL
from profkit.importers.reading.numbers import Bools, Ints
from profkit.importers.straggler.job import Job

OPS = {
    **dict.fromkeys(MESSAGES[::2], "send"), **dict.fromkeys(MESSAGES[1::2], "recv"),
    GATHER: "all_gather", SCATTER: "reduce_scatter",
}  # fmt: skip
"""profkit's names of operations; all others are all-reduces."""

SHARED = {
    **dict.fromkeys(DATA_PARALLEL, ("stage", "tp")), EMBEDDING: ("dp", "tp"),
    LAYERNORM: ("dp", "stage"), CLIP: (),
}  # fmt: skip
"""The coordinates that the ranks of a group have in common, by the type of operation."""

MODULES = {EMBEDDING: "embedding", LAYERNORM: "layernorm"}
"""The part of the model of operations that say it by their type."""


@dataclass(frozen=True, eq=False)
class Groups:
    """For each operation: its communicator, its number there, and the microbatch that it sent.

    Operations that do not communicate have the communicator `NULL`.
    """

    names: Sequence[str]
    communicator: Ints
    size: Ints
    """The ranks of each communicator that have operations of it."""
    sequence: Ints
    microbatch: Ints
    flags: tuple[str, ...] = ()


def find_groups(operations: Operations, job: Job) -> Groups:
    """Return the groups of all operations that communicate."""
    place = np.array(list(job.tensor_place.values()))
    ranks = np.array(list(job.tensor_place))
    tensor = place[np.searchsorted(ranks, operations.rank)]
    several = len(np.unique(tensor)) > 1
    maker = _Maker(operations, tensor, several=several)
    for code, kind in enumerate(operations.kinds):
        if kind in COMMUNICATES and kind not in MESSAGES:
            maker.add_collective(operations.kind == code, kind)
    flag = maker.add_messages()
    return maker.finish([flag] if flag else [])


class _Maker:
    """Numbers the communicators of a trace and their operations."""

    def __init__(self, operations: Operations, tensor: Ints, *, several: bool) -> None:
        self._operations = operations
        self._tensor = tensor
        self._several = several
        self._steps, self._step = np.unique(operations.step, return_inverse=True)
        self._names: dict[str, int] = {}
        count = len(operations.kind)
        self._communicator = np.full(count, NULL, dtype=np.int64)
        self._sequence = np.zeros(count, dtype=np.int64)
        self._microbatch = np.full(count, -1, dtype=np.int64)

    def add_collective(self, chosen: Bools, kind: str) -> None:
        """Give the operations of a type the communicator of the ranks that take part."""
        rows = np.flatnonzero(chosen)
        if not len(rows):
            return
        operations = self._operations
        columns = {"stage": operations.stage, "dp": operations.data_rank, "tp": self._tensor}
        parts = {}
        for name in SHARED[kind]:
            if name != "tp" or self._several:
                parts[name] = columns[name][rows]
        each = int(operations.sequence[rows].max()) + 1
        self._sequence[rows] = self._step[rows] * each + operations.sequence[rows]
        self._name(rows, kind, parts)

    def add_messages(self) -> str:
        """Give sends and receives the communicator of their link; return why they have no peers.

        Which send belongs to which receive is the same in every step, so it is found once.
        """
        operations = self._operations
        codes = [code for code, kind in enumerate(operations.kinds) if kind in MESSAGES]
        rows = np.flatnonzero(np.isin(operations.kind, codes))
        if not len(rows):
            return ""
        try:
            link, number, microbatch, names, count = self._match(rows)
        except ReplayError as error:
            link, number, microbatch = np.full((3, len(rows)), -1)
            names, count, why = [], 1, f"sends and receives were not matched: {error}"
        else:
            why = ""
        self._microbatch[rows] = microbatch
        self._sequence[rows] = self._step[rows] * count + number
        for place, name in enumerate(names):
            mine = rows[link == place]
            parts = {"dp": operations.data_rank[mine]}
            if self._several:
                parts["tp"] = self._tensor[mine]
            self._name(mine, name, parts)
        alone = rows[link < 0]
        for code in codes:
            mine = alone[operations.kind[alone] == code]
            each = int(operations.sequence[mine].max(initial=0)) + 1
            self._sequence[mine] = self._step[mine] * each + operations.sequence[mine]
            what = f"{operations.kinds[code]}{ALONE}"
            self._name(mine, what, {"rank": operations.rank[mine]})
        return why

    def _match(self, rows: Ints) -> tuple[Ints, Ints, Ints, list[str], int]:
        """Return link, number and microbatch of each message, the links, and messages of a link."""
        operations = self._operations
        # Other operations, such as garbage collection, may differ between ranks and steps.
        matters = np.isin(operations.kinds, [*COMPUTES, *MESSAGES])[operations.kind]
        first = np.flatnonzero((self._tensor == 0) & matters)
        columns = {}
        for name, column in vars(operations).items():
            columns[name] = column if name == "kinds" else column[first]
        grid = arrange(Operations(**columns))
        template = Template.of(grid)
        found = match_messages(template)
        links: dict[str, int] = {}
        known: dict[int, tuple[int, int, int]] = {}
        for pair in found.pairs:
            name = f"{pair.direction} from stage {pair.sender} to {pair.receiver}"
            link = links.setdefault(name, len(links))
            for node in pair.nodes:
                microbatch = int(operations.microbatch[first[grid.first[found.compute[node]]]])
                known[node] = link, pair.number, microbatch
        keys = key_of(operations)
        wanted = {int(keys[first[grid.first[node]]]): each for node, each in known.items()}
        values = []
        for key in keys[rows].tolist():
            values.append(wanted.get(key, (-1, 0, -1)))
        link, number, microbatch = np.array(values, dtype=np.int64).reshape(-1, 3).T
        return link, number, microbatch, list(links), int(number.max(initial=0)) + 1

    def _name(self, rows: Ints, what: str, parts: dict[str, Ints]) -> None:
        """Give rows a communicator for each combination of the values in `parts`."""
        if not len(rows):
            return
        table = np.stack([np.zeros(len(rows), dtype=np.int64), *parts.values()])
        values, which = np.unique(table, axis=1, return_inverse=True)
        codes = []
        for column in values[1:].T.tolist():
            words = [f"{name} {value}" for name, value in zip(parts, column, strict=True)]
            name = ", ".join([what, *words])
            codes.append(self._names.setdefault(name, len(self._names)))
        self._communicator[rows] = np.array(codes)[which.reshape(-1)]

    def finish(self, flags: Sequence[str]) -> Groups:
        """Return all communicators, each with the number of its ranks."""
        members = self._communicator >= 0
        pairs = np.unique(
            np.stack([self._communicator[members], self._operations.rank[members]]), axis=1
        )
        size = np.bincount(pairs[0], minlength=len(self._names))
        return Groups(
            list(self._names), self._communicator, size, self._sequence, self._microbatch,
            tuple(flags),
        )  # fmt: skip
