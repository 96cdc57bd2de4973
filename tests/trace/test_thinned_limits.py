"""What a thinned run cannot show is said, and no figure takes a gap of its sample for time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from profkit.analysis.overview import build_overview
from profkit.analysis.run_change import ChangeKind
from profkit.analysis.whatif.loader_model import time_between_batches
from profkit.frame.costs import OUTLIER
from profkit.frame.device_times import PhaseClock
from profkit.frame.notices import find_thinned_notice
from profkit.report.words import clock_words
from profkit.trace import Trace
from profkit.trace.sampled import BLOCK
from profkit.vocab import LOADER_WORKER
from tests.trace.test_thinning import Job, record

EVERY = 31


class Saving(Job):
    """A job that saves a checkpoint at regular intervals."""

    def rows(self, step: int) -> Iterator[tuple[str, dict[str, Any]]]:
        for table, row in super().rows(step):
            if table == "steps" and step % EVERY == 0:
                self.now += 300_000_000
                row["end_ns"] = self.now
            yield table, row


def test_slow_steps_at_regular_intervals_are_not_guessed_from_a_sample(tmp_path: Path) -> None:
    found = []
    for name, thinned in (("full", False), ("thinned", True)):
        record(tmp_path / name, thinned=thinned, job_type=Saving)
        trace = Trace.open(tmp_path / name)
        for change in build_overview(trace).changes:
            found += [(name, change.every)] if change.kind is ChangeKind.PERIODIC else []
    assert found == [("full", EVERY)]
    notice = " ".join(find_thinned_notice(trace))
    assert "whether steps are slow at regular intervals is not known" in notice


@pytest.mark.parametrize("workers", [4, 20])
def test_a_gap_of_the_sample_is_no_time_between_batches(workers: int) -> None:
    rows: dict[str, list[Any]] = {name: [] for name in ("step", "thread", "name")}
    starts, ends = [], []
    whole = range(100)
    sampled = [step for step in range(100, 64_000) if step // BLOCK % 64 == 3]
    for step in (*whole, *sampled):
        rows["step"].append(step)
        rows["thread"].append(f"{LOADER_WORKER}{step % workers}")
        rows["name"].append("read")
        starts.append(step * 10)
        ends.append(step * 10 + 10 * workers - 1)
    pieces = pa.table({**rows, "start_ns": starts, "end_ns": ends})
    for name in ("thread", "name"):
        place = pieces.schema.get_field_index(name)
        pieces = pieces.set_column(place, name, pieces[name].dictionary_encode())
    assert time_between_batches(pieces) == 1.0


def test_the_phases_of_a_thinned_run_on_a_device_are_said_to_be_of_all_used_steps() -> None:
    sample = SimpleNamespace(steps=range(90), left_out={})
    costs = SimpleNamespace(
        steps=80,
        selection=SimpleNamespace(left_out={OUTLIER: 10}),
        unclocked=(),
    )
    view: Any = SimpleNamespace(
        clock=PhaseClock.DEVICE,
        costs=costs,
        selection=sample,
        thinned=object(),
        steps_used=5_000,
        exchange_timed=False,
    )
    words = " ".join(clock_words(view))
    assert "80 of 90" not in words
    assert "The phases are those of all 5,000 used steps, also of those" in words
    assert "outlier" in words
