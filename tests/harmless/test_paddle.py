"""Programs with `paddle.DataParallel` give the same bits with and without profkit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harmless.commands import PYTHON, Ended, cases_in, run

JOB = Path(__file__).parent / "jobs" / "paddle_cases.py"
CASES = cases_in(JOB)
LAUNCH = [PYTHON, "-m", "paddle.distributed.launch", "--backend", "gloo"]
NEVER_FAIL = {
    "plain",
    "one_bucket",
    "no_sync",
    "find_unused_parameters",
    "gradient_clipping",
    "accumulation",
    "save_and_load",
    "average_of_weights",
    "several_modules",
    "group_of_its_own",
    "a_copy_wrapped_anew",
    "hooks_on_parameters",
    "attributes",
    "exception_in_a_forward",
}


@dataclass(frozen=True)
class Launch:
    """One start of all cases on some ranks."""

    ended: Ended
    told: tuple[dict[str, Any], ...]  # for each rank

    def outcomes(self, case: str) -> list[Any]:
        return [rank.get(case, "never came to it") for rank in self.told]


def _launch(folder: Path, ranks: int, *, recorded: bool) -> Launch:
    told = folder / "told"
    told.mkdir(parents=True)
    command = [*LAUNCH, "--nproc_per_node", ranks, "--log_dir", folder / "log", JOB, told]
    ended = run(command, folder, recorded=recorded, patience=120)
    files = [told / f"rank{rank}.json" for rank in range(ranks)]
    read = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return Launch(ended, tuple(read))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Launch]:
    """The cases as they are, on two and on three ranks."""
    folder = tmp_path_factory.mktemp("bare")
    return {ranks: _launch(folder / str(ranks), ranks, recorded=False) for ranks in (2, 3)}


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The cases as they are once more, on two ranks."""
    return _launch(tmp_path_factory.mktemp("again"), 2, recorded=False)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Launch]:
    """The cases under `profkit run`, on two and on three ranks."""
    folder = tmp_path_factory.mktemp("recorded")
    return {ranks: _launch(folder / str(ranks), ranks, recorded=True) for ranks in (2, 3)}


@pytest.mark.parametrize("case", CASES)
def test_two_bare_runs_come_to_the_same(
    case: str,
    bare: dict[int, Launch],
    again: Launch,
) -> None:
    outcomes = bare[2].outcomes(case)
    assert outcomes == again.outcomes(case)
    assert "never came to it" not in outcomes, bare[2].ended.err
    if case in NEVER_FAIL:
        assert not any("error" in outcome for outcome in outcomes), outcomes


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_recorded_run_comes_to_the_same(
    case: str,
    ranks: int,
    bare: dict[int, Launch],
    recorded: dict[int, Launch],
) -> None:
    assert recorded[ranks].outcomes(case) == bare[ranks].outcomes(case)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_job_ends_as_it_would_and_is_recorded(
    ranks: int,
    bare: dict[int, Launch],
    recorded: dict[int, Launch],
) -> None:
    ended = recorded[ranks].ended
    assert ended.code == bare[ranks].ended.code == 0, ended.err
    assert ended.ranks == [f"r{rank:05}" for rank in range(ranks)], ended.err
    assert "Traceback" not in ended.err
