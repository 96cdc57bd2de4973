"""Communicators of an export whose processes name them differently."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.frame.exchange import match_all
from profkit.importers.nsys import IMPORTER
from profkit.importers.nsys.joining import join_communicators
from profkit.trace import Trace
from tests.importers.conftest import NSYS, Import, needs_data

Message = tuple[str, str, int, int, int]
"""Communicator, operation, bytes, begin and end."""


def columns(messages: Sequence[Message]) -> dict[str, Any]:
    """Return one rank's collectives as an importer makes them."""
    names, ops, sizes, starts, ends = map(list, zip(*messages, strict=True))
    counts: dict[str, int] = {}
    sequence = []
    for name in names:
        sequence.append(counts.setdefault(name, 0))
        counts[name] += 1
    return {
        "communicator": names,
        "sequence": np.array(sequence),
        "op": ops,
        "bytes": np.array(sizes),
        "group_size": np.zeros(len(names), np.int32),
        "start_ns": np.array(starts),
        "end_ns": np.array(ends),
    }


def calls(name: str, begin: int, *, count: int = 5, size: int = 64, late: int = 0) -> list[Message]:
    """Return collectives of one communicator, each of which begins late on this rank."""
    made = []
    for number in range(count):
        start = begin + 1_000 * number
        made.append((name, "all_reduce", size + number, start + late, start + 500))
    return made


def keys(rank: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(rank["communicator"], rank["sequence"].tolist(), strict=True))


def test_the_streams_of_two_processes_are_one_communicator() -> None:
    ranks = [columns(calls("stream 7", 0)), columns(calls("stream 15", 0, late=200))]
    assert any("1 communicator joined" in flag for flag in join_communicators(ranks))
    assert keys(ranks[0]) == keys(ranks[1])
    assert keys(ranks[1])[0] == ("stream 7 of rank 0", 0)


def test_equal_streams_of_two_processes_may_be_two_communicators() -> None:
    """The first rank's stream 7 is the second's 9, and the other way round."""
    ranks = [
        columns([*calls("stream 7", 0), *calls("stream 9", 20_000)]),
        columns([*calls("stream 9", 0, late=100), *calls("stream 7", 20_000, late=100)]),
    ]
    assert any("2 communicators joined" in flag for flag in join_communicators(ranks))
    assert keys(ranks[0]) == keys(ranks[1])
    assert len(set(ranks[0]["communicator"])) == 2


def test_groups_of_some_ranks_are_joined_within_themselves() -> None:
    """Ranks 0 and 2, and 1 and 3, reduce at other times."""
    ranks = [columns(calls(f"stream {7 + rank}", 20_000 * (rank % 2))) for rank in range(4)]
    flags = list(join_communicators(ranks))
    assert any("2 communicators joined" in flag for flag in flags)
    assert all(rank["group_size"].tolist() == [2] * 5 for rank in ranks)
    assert keys(ranks[0]) == keys(ranks[2])
    assert keys(ranks[1]) == keys(ranks[3])
    assert keys(ranks[0]) != keys(ranks[1])


def test_pairs_that_reduce_at_the_same_time_are_not_guessed() -> None:
    """They overlap throughout, but a collective ends on all of its ranks at once."""
    ranks = []
    for rank in range(4):
        own = calls(f"stream {7 + rank}", 0)
        longer = 1_000_000 * (rank % 2)
        scaled = [(*each[:3], each[3] * 10_000, each[4] * 10_000 + longer) for each in own]
        ranks.append(columns(scaled))
    assert any("2 communicators joined" in flag for flag in join_communicators(ranks))
    assert keys(ranks[0]) == keys(ranks[2])
    assert keys(ranks[1]) == keys(ranks[3])
    assert keys(ranks[0]) != keys(ranks[1])


def test_ranks_that_match_several_are_left_alone() -> None:
    """Rank 1 overlaps both others, which do not overlap each other."""
    ranks = []
    for shift in (0, 400, 800):
        own = [(*each[:3], each[3] + shift, each[4] + shift) for each in calls("stream 7", 0)]
        ranks.append(columns(own))
    flags = list(join_communicators(ranks))
    assert any("3 communicators could not be joined" in flag for flag in flags)
    assert len({keys(rank)[0] for rank in ranks}) == 3
    assert not any(rank["group_size"].any() for rank in ranks)


@pytest.mark.parametrize(
    "other",
    [
        calls("stream 15", 0, size=65),
        calls("stream 15", 3_500),
        calls("stream 15", 0, count=2),
        [(name, "broadcast", *rest) for name, _, *rest in calls("stream 15", 0)],
    ],
    ids=["other sizes", "other times", "fewer", "other operations"],
)
def test_other_collectives_are_another_communicator(other: list[Message]) -> None:
    ranks = [columns(calls("stream 7", 0)), columns(other)]
    assert any("could not be joined" in flag for flag in join_communicators(ranks))
    assert keys(ranks[0])[0][0] != keys(ranks[1])[0][0]


@pytest.mark.parametrize(("begin", "end"), [(1, None), (0, -1), (1, -1)])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_capture_may_begin_and_end_within_the_collectives(
    begin: int, end: int | None, cut: int
) -> None:
    both = [calls("stream 7", 0), calls("stream 15", 0, late=200)]
    both[cut] = both[cut][begin:end]
    ranks = [columns(each) for each in both]
    assert any("1 communicator joined" in flag for flag in join_communicators(ranks))
    times = [dict(zip(keys(rank), rank["end_ns"].tolist(), strict=True)) for rank in ranks]
    shared = times[0].keys() & times[1].keys()
    assert len(shared) == len(both[cut])
    assert all(times[0][key] == times[1][key] for key in shared)
    assert min(number for rank in ranks for _, number in keys(rank)) == 0


def test_so_many_communicators_take_no_time() -> None:
    """A hostile file may have a communicator for each collective."""
    names = [f"stream {number}" for number in range(20_000)]
    many = [message for name in names for message in calls(name, 0, count=1)]
    ranks = [columns(many), columns(many)]
    begun = time.thread_time()
    flags = list(join_communicators(ranks))
    assert time.thread_time() - begun < 5
    assert any("40,000 communicators could not be joined" in flag for flag in flags)


def test_numbers_of_nccl_itself_stay() -> None:
    ranks = [columns(calls("5f3a", 0)), columns(calls("5f3a", 0))]
    (flag,) = join_communicators(ranks)
    assert "1 communicator has as many ranks as show it in the file" in flag
    assert keys(ranks[1])[0] == ("5f3a", 0)


def test_one_rank_alone_joins_nothing() -> None:
    rank = columns(calls("stream 7", 0))
    (flag,) = join_communicators([rank])
    assert "how many ranks take part is not known" in flag
    assert keys(rank)[0] == ("stream 7", 0)


@needs_data
@pytest.mark.parametrize("path", NSYS, ids=lambda path: path.stem)
def test_both_gpus_of_an_export_meet_in_their_collectives(path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, path)
    rows = Trace.open(made.run).collectives
    found = match_all(rows)
    assert found.count == found.matched_count == rows.num_rows / 2
    assert any("1 communicator joined" in flag for flag in made.flags)
