"""A comparison says if one side alone times the reset of gradients."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.explain.explained import explain
from profkit.testing import synthetic_trace
from profkit.trace import Trace
from profkit.vocab import ZERO_GRAD

STEPS = 40
SHORT, LONG = 0.001, 0.5
"""Shares of the optimizer's time."""


def _run(folder: Path, *, reset: float = 0.0, is_imported: bool = False) -> Trace:
    """Return a run in which a last part of the optimizer's spans resets gradients."""
    trace = Trace.open(synthetic_trace(folder, steps=STEPS, ranks=2))
    spans = trace.spans
    if is_imported:
        config = {**trace.manifest.config, "imported_from": "chrome"}
        vars(trace)["manifest"] = dataclasses.replace(trace.manifest, config=config)
    if not reset:
        return trace
    is_update = pc.equal(spans["phase"].cast(pa.string()), "optimizer")
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    cut = np.where(is_update.to_numpy(), end - (reset * (end - start)).astype(np.int64), end)
    parts = [_with(spans, "end_ns", pa.array(cut))]
    resets = _with(spans, "start_ns", pa.array(cut)).filter(is_update)
    parts.append(_with(resets, "name", pa.array([ZERO_GRAD] * resets.num_rows)))
    vars(trace)["spans"] = pa.concat_tables(parts)
    return trace


def _with(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, values.cast(field.type))


def _said(base: Trace, target: Trace) -> list[str]:
    return [each for each in explain(base, target).caveats if "gradient reset" in each]


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_side_that_alone_times_resets_is_named(tmp_path: Path, is_turned: bool) -> None:
    sides = [_run(tmp_path / "without"), _run(tmp_path / "with", reset=LONG)]
    if is_turned:
        sides.reverse()
    (words,) = _said(*sides)
    assert words.startswith("the optimizer of with includes 2.01 ms per step for the gradient")
    assert "without recorded no such call" in words


@pytest.mark.parametrize(
    ("base", "target", "is_imported"),
    [(0.0, 0.0, False), (LONG, LONG, False), (0.0, SHORT, False), (0.0, LONG, True)],
    ids=["none", "both", "too short to matter", "an imported trace"],
)
def test_nothing_is_said_where_both_sides_are_alike(
    tmp_path: Path, base: float, target: float, is_imported: bool
) -> None:
    first = _run(tmp_path / "base", reset=base, is_imported=is_imported)
    assert _said(first, _run(tmp_path / "target", reset=target)) == []
