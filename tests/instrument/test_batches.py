"""The short way to count plain batches gives what the long way gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profkit.instrument import batches
from profkit.instrument.batches import ElementReadings, count_batch, count_samples

SHAPES = st.lists(st.integers(0, 3), max_size=2)


class _Own(torch.Tensor):
    """A tensor of the job's own class, which may state a size."""

    batch_size = 7


def _tensor(shape: list[int]) -> torch.Tensor:
    return torch.zeros(shape)


ITEMS = st.one_of(
    SHAPES.map(_tensor),
    SHAPES.map(lambda shape: _tensor(shape).as_subclass(_Own)),
    st.lists(SHAPES.map(_tensor), max_size=2),
    st.sampled_from(["name", 3, None]),
)
BATCHES = st.one_of(
    SHAPES.map(_tensor),
    st.lists(ITEMS, max_size=4),
    st.lists(ITEMS, max_size=4).map(tuple),
    st.lists(ITEMS, max_size=4).map(lambda items: dict(enumerate(items))),
)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PLAIN_TENSORS", {torch.Tensor})


@given(BATCHES)
def test_plain_batches_are_counted_as_all_others(batch: Any) -> None:
    assert count_batch(batch) == count_samples(batch)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_a_shape_is_not_plain() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert type(nested) is torch.Tensor
    assert batches.count_plain([nested]) == 0


@pytest.mark.parametrize("kind", [list, tuple, lambda items: dict(zip("xy", items, strict=True))])
def test_tensors_of_equal_size_are_counted_at_once(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "count_samples", None)  # not called
    assert count_batch(kind([torch.zeros(8, 3), torch.zeros(8)])) == 8


def test_elements_are_noted_where_they_differ_and_not_too_often() -> None:
    rows: list[tuple[Any, ...]] = []
    moments = iter(range(0, 10**9, batches.READING_NS // 2))
    readings = ElementReadings(rows.append, lambda: next(moments))
    for length in (3, 3, 4, 5, 5, 6):  # the clock is read where they differ
        readings.note({"x": torch.zeros(2, length), "y": torch.zeros(2)})
    readings.note("text")
    assert [row[4] for row in rows] == [6.0, 10.0]
