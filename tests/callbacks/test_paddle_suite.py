"""The profiler hook of PaddleClas, PaddleSeg and PaddleVideo, in fake packages."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from profkit.callbacks.paddle_suite import MODULES
from tests.callbacks.conftest import JOBS, Ended, start

THEIRS = "CALLS = []\ndef add_profiler_step(options_str=None):\n    CALLS.append(options_str)\n"


def _make_suites(folder: Path) -> None:
    for name in MODULES:
        *packages, module = name.split(".")
        place = folder.joinpath(*packages)
        place.mkdir(parents=True)
        for package in (place, place.parent):
            (package / "__init__.py").touch()
        (place / f"{module}.py").write_text(THEIRS)


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    """The job after it has trained bare, and under `profkit run`; both at the same time."""
    folder = tmp_path_factory.mktemp("suites")
    _make_suites(folder / "suites")
    path = {"PYTHONPATH": str(folder / "suites")}
    alone = start(folder / "alone", JOBS / "train_suites.py", "bare", is_recorded=False, env=path)
    under_run = start(folder / "under_run", JOBS / "train_suites.py", is_recorded=True, env=path)
    return alone.wait(), under_run.wait()


def test_each_call_is_a_step(suites: tuple[Ended, Ended]) -> None:
    for ended in suites:
        assert ended.code == 0, ended.err
        steps = ended.trace.steps
        assert steps["sample_count"].to_pylist()[:24] == [4] * 24
        assert steps.num_rows == 32
        recorded = steps["loss"].to_pylist()
        assert all(
            loss in {None, own}
            for loss, own in zip(recorded, itertools.chain(*ended.told[0]["losses"]), strict=True)
        )


def test_theirs_is_called_as_before(suites: tuple[Ended, Ended]) -> None:
    for ended in suites:
        assert ended.told[0]["theirs"] == [[8, None], [8, "batch_range=[1, 2]"], [8, None]]
        assert ended.told[0]["undone"] == ["function"] * 3


def test_their_loops_train_to_the_bit_as_without_profkit(suites: tuple[Ended, Ended]) -> None:
    from_loader, in_memory = suites[0].told[0]["bare"]
    for ended in suites:
        assert ended.told[0]["losses"] == [*[from_loader] * 3, in_memory]


def test_installing_it_does_nothing_where_profkit_is_off(tmp_path: Path) -> None:
    checks = (
        "assert not [finder for finder in sys.meta_path if 'profkit' in type(finder).__module__]\n"
        "assert 'paddle' not in sys.modules"
    )
    script = tmp_path / "off.py"
    script.write_text(
        "import sys\nfrom profkit.callbacks import paddle_suite\npaddle_suite.install()\n"
        "paddle_suite.add_profiler_step('x=1')\n"
        f"paddle_suite.add_profiler_step()\n{checks}\n"
    )
    ended = start(tmp_path / "job", script, is_recorded=False, env={"PROFKIT_DISABLE": "1"}).wait()
    assert (ended.code, ended.runs) == (0, ()), ended.err
