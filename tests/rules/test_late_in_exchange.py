"""A rank that is late within the exchange is named, though all of its phases are as usual."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.explain.explained import Explained, explain
from profkit.testing import synthetic_trace
from profkit.testing.synthetic import MEAN_PHASE_NS
from profkit.trace import Trace
from profkit.vocab import rank_folder

MS = 1_000_000
STEPS = 120


def write(folder: Path, ranks: int, late: dict[int, int], seed: int) -> Trace:
    """Write a run whose `late` ranks begin their last collective so many ms into the exchange."""
    backward_ns = MEAN_PHASE_NS["backward"]
    phases = {rank: {"backward": backward_ns + ms * MS} for rank, ms in late.items()}
    run = synthetic_trace(
        folder, ranks=ranks, steps=STEPS, seed=seed, rank_phase_ns=phases, buckets=1
    )
    for rank, ms in late.items():
        move_exchange(run / rank_folder(rank), ms * MS)
    return Trace.open(run)


def move_exchange(rank: Path, by_ns: int) -> None:
    """Let the exchange begin earlier, and the backward end with it."""
    names = read(rank / "strings.arrows")
    ids = dict(zip(names["value"].to_pylist(), names["id"].to_pylist(), strict=True))
    spans = read(rank / "spans.arrows")
    for phase, name in (("backward", "end_ns"), ("allreduce", "start_ns")):
        is_moved = pc.equal(spans["phase"], ids[phase])
        earlier = pc.if_else(is_moved, pc.subtract(spans[name], by_ns), spans[name])
        place = spans.schema.get_field_index(name)
        spans = spans.set_column(place, spans.schema.field(name), earlier)
    with pa.ipc.new_stream(rank / "spans.arrows", spans.schema) as writer:
        writer.write_table(spans)


def read(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path) as reader:
        return reader.read_all()


def compare(folder: Path, ranks: int, base: dict[int, int], late: dict[int, int]) -> Explained:
    return explain(write(folder / "a", ranks, base, 1), write(folder / "b", ranks, late, 2))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("base", "late", "ms"), [({}, {1: 20}, 20), ({1: 6}, {1: 20}, 14)])
def test_the_rank_and_its_cost_are_named(
    tmp_path: Path, ranks: int, base: dict[int, int], late: dict[int, int], ms: int
) -> None:
    found = compare(tmp_path, ranks, base, late)
    (cause,) = (cause for cause in found.causes if cause.cost_ns is not None)
    assert cause.kind == "late_rank"
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(ms * MS, rel=0.15)
    assert "rank 1 begins its collectives" in cause.evidence
    assert ("in the base" in cause.evidence) == bool(base)


@pytest.mark.parametrize("late", [{0: 20, 1: 20}, {1: 2}])
def test_nobody_is_named_if_all_are_as_late_or_one_is_hardly_late(
    tmp_path: Path, late: dict[int, int]
) -> None:
    found = compare(tmp_path, 2, {}, late)
    assert "late_rank" not in {cause.kind for cause in found.causes}
