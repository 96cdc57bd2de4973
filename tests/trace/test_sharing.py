"""Shared samples count once, and not at all if nobody knows who shares them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from profkit.clock import Anchor
from profkit.schema import open_schema
from profkit.trace.manifest import RankManifest
from profkit.trace.sharing import OWN_SAMPLES, find_sharing, say_world, share_samples


def manifests(*noted: dict[str, Any] | None) -> list[RankManifest]:
    found = []
    for rank, each in enumerate(noted):
        config = {} if each is None else {"data_parallel": each}
        anchor = Anchor(0, 0, 0)
        found.append(
            RankManifest(rank, "host", 1, "cpu", anchor, world_size=len(noted), config=config)
        )
    return found


def place(size: int, rank: int) -> dict[str, Any]:
    return {"size": size, "rank": rank, "by": "device mesh"}


def steps_of(counts: list[list[int]]) -> pa.Table:
    """The steps of ranks that report these numbers of samples."""
    rows = []
    for rank, own in enumerate(counts):
        for step, count in enumerate(own):
            rows.append({"rank": rank, "step": step, "sample_count": count})
    schema = open_schema("steps")
    return pa.Table.from_pylist(rows, schema=schema)


def per_step(table: pa.Table) -> list[int]:
    summed = table.group_by("step").aggregate([("sample_count", "sum")]).sort_by("step")
    counts: list[int] = summed["sample_count_sum"].to_pylist()
    return counts


def test_a_run_that_says_nothing_is_counted_as_before() -> None:
    sharing = find_sharing(manifests(None, None))
    assert sharing == OWN_SAMPLES
    steps = steps_of([[8, 8], [8, 8]])
    assert share_samples(steps, sharing) is steps


def test_ranks_that_all_differ_are_summed() -> None:
    sharing = find_sharing(manifests(place(2, 0), place(2, 1)))
    assert per_step(share_samples(steps_of([[8, 8], [8, 4]]), sharing)) == [16, 12]


@pytest.mark.parametrize("order", [[0, 0, 1, 1], [0, 1, 0, 1]])
def test_ranks_that_share_samples_count_once(order: list[int]) -> None:
    sharing = find_sharing(manifests(*(place(2, rank) for rank in order)))
    assert sharing.data_ranks == 2
    assert per_step(share_samples(steps_of([[8, 8]] * 4), sharing)) == [16, 16]


def test_a_stage_without_samples_takes_none_away() -> None:
    sharing = find_sharing(manifests(place(1, 0), place(1, 0)))
    assert per_step(share_samples(steps_of([[0, 0], [8, 6]]), sharing)) == [8, 6]


@pytest.mark.parametrize(
    "noted",
    [
        [{"by": "no device mesh"}, {"by": "no device mesh"}],
        [place(1, 0), {"by": "no device mesh"}],
        [place(1, 0), place(2, 1)],
        [place(1, 0), None],
        [{"size": "many", "rank": 0}, {"size": "many", "rank": 0}],
    ],
)
def test_without_knowledge_there_are_no_samples(noted: list[dict[str, Any] | None]) -> None:
    sharing = find_sharing(manifests(*noted))
    assert sharing.why
    assert per_step(share_samples(steps_of([[8, 8], [8, 8]]), sharing)) == [0, 0]


def test_a_rank_that_ended_before_it_said_anything_differs_if_all_others_do() -> None:
    assert find_sharing(manifests(place(2, 0), None)) == OWN_SAMPLES


def test_the_world_is_said_by_its_dimensions() -> None:
    assert say_world(4, {"parallel": {"fsdp": 2, "tp": 2}}) == "4 ranks (fsdp 2 x tp 2)"
    assert say_world(1, {}) == "1 rank"
