"""Callbacks in jobs with several ranks, and in jobs in which profkit is switched off."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from profkit.trace import verify
from profkit.vocab import Integrity
from tests.callbacks.conftest import JOBS, Ended, start


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended, Path]:
    """Two ranks, and the job that is not recorded; both at the same time."""
    folder = tmp_path_factory.mktemp("launches")
    ranks = start(folder / "ranks", JOBS / "train_lightning_ranks.py", is_recorded=False)
    off = start(
        folder / "off",
        JOBS / "train_paddle.py",
        0,
        1,
        is_recorded=False,
        env={"PROFKIT_DISABLE": "1"},
    )
    return ranks.wait(), off.wait(), folder / "ranks"


def test_ranks_that_the_trainer_starts_share_a_run(launches: tuple[Ended, Ended, Path]) -> None:
    ended, _, folder = launches
    assert ended.code == 0, ended.err
    assert verify(ended.runs[0]).state is Integrity.COMPLETE
    steps = ended.trace.steps
    for rank in (0, 1):
        own = steps.filter(pc.equal(steps["rank"], rank))
        assert own.num_rows == json.loads((folder / f"rank-{rank}.json").read_text())["steps"]
        assert own["sample_count"].to_pylist() == [8, 8, 4] * 2


def test_switched_off_a_callback_does_nothing(launches: tuple[Ended, Ended, Path]) -> None:
    _, ended, _ = launches
    assert (ended.code, ended.runs) == (3, ()), ended.err
    bare, told = ended.told[:2], ended.told[2:]
    assert [training["losses"] for training in told] == [training["losses"] for training in bare]
