"""What sampled threads did, from their states, system calls, and waits for a core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from profkit.analysis.doing import COMPUTING, NO_CORE, RUNNING, number_doings
from profkit.analysis.overview import build_overview
from profkit.schema import open_schema
from profkit.trace import Trace
from profkit.trace.files import RankFiles
from profkit.vocab import EYE, rank_folder
from tests.analysis.test_stacks import DATA_MS, FRAMES, MS, write_run
from tests.documents import report_json, report_text


def _words(
    states: Sequence[str], calls: Sequence[str], shares: Sequence[float | None]
) -> list[str]:
    types = {name: open_schema("stacks").field(name).type for name in ("state", "call")}
    table = pa.table(
        {
            "state": pa.array(states).cast(types["state"]),
            "call": pa.array(calls).cast(types["call"]),
            "waited_share": pa.array(shares, pa.float64()),
        }
    )
    numbers: dict[str, int] = {}
    found = number_doings(table, numbers)
    names = list(numbers)
    return [names[number] for number in found.tolist()]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.99, 1.0])
def test_as_many_samples_wait_for_a_core_as_the_kernel_says(share: float) -> None:
    count = 400
    words = _words(["R"] * count, [""] * count, [share] * count)
    assert words.count(NO_CORE) == pytest.approx(share * count, abs=1)
    assert words.count(COMPUTING) == count - words.count(NO_CORE)
    halves = [words[: count // 2].count(NO_CORE), words[count // 2 :].count(NO_CORE)]
    assert abs(halves[0] - halves[1]) <= 1


def test_samples_that_sleep_wait_for_no_core_whatever_their_share() -> None:
    words = _words(["S", "R", "S", "R"], ["nanosleep", "", "futex", ""], [1.0, None, 1.0, 0.0])
    assert words == ["sleeping", RUNNING, "waiting for another thread", COMPUTING]


def test_a_phase_says_how_it_is_spent(tmp_path: Path) -> None:
    """Of 60 ms of forward, half is asleep; of the rest, a quarter waits for a core."""
    run = tmp_path / "run"
    write_run(run, steps=80)
    files = RankFiles(run / rank_folder(0) / EYE, 0)
    names = ("id", "parent", "file", "function", "line", "origin")
    files.write("frames", dict(zip(names, zip(*FRAMES, strict=True), strict=True)))
    trace = Trace.open(run)
    starts = trace.steps["start_ns"].to_numpy()
    rows = []
    for start in starts.tolist():
        for place, at in enumerate(np.arange(DATA_MS + 2, DATA_MS + 30, 4)):
            state, call = ("S", "nanosleep") if place % 2 else ("R", None)
            rows.append((start + int(at * MS), 0, 4 * MS, "MainThread", 1, state, call, 0.25))
    columns = ["time_ns", "late_ns", "every_ns", "thread", "stack", "state", "call", "waited_share"]
    files.write("stacks", dict(zip(columns, zip(*rows, strict=True), strict=True)))
    files.close()
    view = build_overview(Trace.open(run))
    assert view.code is not None
    (part,) = (part for part in view.code.phases if part.how)
    assert part.how is not None
    assert part.how.no_core is not None
    awake = 4 / 7
    assert part.how.computing.value == pytest.approx(0.75 * awake, abs=0.01)
    assert part.how.no_core.value == pytest.approx(0.25 * awake, abs=0.01)
    assert part.how.blocked.value == pytest.approx(1 - awake, abs=0.01)
    assert part.how.mostly == "sleeping"
    (found,) = (each for each in report_json(view)["code"]["phases"] if each["how"])
    assert found["how"]["blocked_by"] == "sleeping"
    assert "How the training thread spends its phases" in report_text(view)
