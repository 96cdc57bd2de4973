"""The sizes that samplers draw, and batches from which a collate function leaves samples out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from profkit.instrument.loading.sizes import BatchSizes

DRAWN = 8


class Iterator:
    """Stands for a loader's iterator."""


def _take_all(shapes: Sequence[tuple[int, ...]], *, ends_short: bool = False) -> list[int]:
    sizes, iterator = BatchSizes(lambda: None), Iterator()
    found = []
    for shape in shapes:
        sizes.draw(iterator, range(DRAWN), ends_short=ends_short)
        found.append(sizes.take(iterator, [np.zeros(shape), np.zeros(shape[:1])]))
    return found


def test_samples_that_a_collate_function_leaves_out_do_not_count() -> None:
    rows = [8, 8, 8, 7, 8, 6, 8]
    assert _take_all([(each, 3) for each in rows]) == rows


@pytest.mark.parametrize(
    "lengths",
    [
        [5, 5, 5, 5],  # time first
        [8, 8, 8, 12, 7],  # time first, and at first as long as the batch
        [7, 8, 6, 8, 5, 4, 8, 3],  # mostly shorter
        [8, 8, 7],  # too few to tell
    ],
)
def test_shapes_that_are_about_something_else_are_not_believed(lengths: list[int]) -> None:
    assert _take_all([(each, 3) for each in lengths]) == [DRAWN] * len(lengths)


def test_a_set_without_an_index_ends_with_a_smaller_batch() -> None:
    assert _take_all([(8, 3), (3, 3)], ends_short=True) == [8, 3]
