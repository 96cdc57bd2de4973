"""The profiler seam of PaddleClas, PaddleSeg and PaddleVideo, in packages of their names that keep what they are called with."""

from __future__ import annotations

import itertools
from pathlib import Path

from profkit.callbacks.paddle_suite import MODULES
from tests.callbacks.conftest import JOBS, start
from tests.callbacks.jobs.shared import shown_code

THEIRS = "CALLS = []\ndef add_profiler_step(options_str=None):\n    CALLS.append(options_str)\n"


def _make_suites(folder: Path) -> None:
    for name in MODULES:
        *packages, module = name.split(".")
        place = folder.joinpath(*packages)
        place.mkdir(parents=True)
        for package in (place, place.parent):
            (package / "__init__.py").touch()
        (place / f"{module}.py").write_text(THEIRS)


def test_each_call_is_a_step_and_theirs_is_called_as_before(tmp_path: Path) -> None:
    _make_suites(tmp_path / "suites")
    script = JOBS / "train_suites.py"
    ended = start(tmp_path / "job", script, is_recorded=True, env={"PYTHONPATH": str(tmp_path / "suites")}).wait()
    assert ended.code == 0, ended.err
    told = ended.told[0]
    assert told["theirs"] == [[8, None], [8, "batch_range=[1, 2]"], [8, None]]
    assert told["undone"] == ["function"] * 3
    steps = ended.trace.steps
    assert steps["sample_count"].to_pylist()[:24] == [4] * 24
    assert steps.num_rows == 32
    recorded = steps["loss"].to_pylist()
    assert all(loss in {None, own} for loss, own in zip(recorded, itertools.chain(*told["losses"]), strict=True))


def test_what_readme_shows_does_nothing_where_profkit_is_off(tmp_path: Path) -> None:
    checks = "assert not [finder for finder in sys.meta_path if 'profkit' in type(finder).__module__]; assert 'paddle' not in sys.modules"
    script = tmp_path / "off.py"
    script.write_text(f"import sys\n{shown_code('paddle_suite')}paddle_suite.add_profiler_step('x=1'); paddle_suite.add_profiler_step()\n{checks}\n")
    ended = start(tmp_path / "job", script, is_recorded=False, env={"PROFKIT_DISABLE": "1"}).wait()
    assert (ended.code, ended.runs) == (0, ()), ended.err
