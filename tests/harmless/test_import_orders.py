"""A job is recorded, and its output is unchanged, in every order of importing torch."""

from __future__ import annotations

import json
import os
import shutil
import zipapp
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harmless.commands import PYTHON, Ended, cases_in, run

ORDERS = Path(__file__).parent / "jobs" / "orders"
CASES = ORDERS / "order_cases.py"
TRAIN = ORDERS / "order_train.py"
STEPS = 30
UV = shutil.which("uv")

Prepare = Callable[[Path], tuple[Sequence[object], dict[str, str], Path | None]]
LAUNCHES: dict[str, Prepare] = {}


def launch(function: Prepare) -> Prepare:
    LAUNCHES[function.__name__] = function
    return function


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Without profkit and without anything unusual: what all that train the same have to say."""
    ended = run([PYTHON, TRAIN], tmp_path_factory.mktemp("plain"), recorded=False)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("digest ")
    assert (ended.err, ended.left) == ("", ())
    return ended


def _told(recorded: Ended) -> str:
    return f"exit code {recorded.code}\n{recorded.out}\n{recorded.err[-3000:]}"


def _assert_recorded(recorded: Ended, steps: int = STEPS) -> None:
    assert recorded.ranks == ["r00000"], _told(recorded)
    assert len(recorded.runs) == 1
    assert "1 rank recorded in" in recorded.said
    assert recorded.steps() == steps


def _assert_same(recorded: Ended, bare: Ended) -> None:
    assert (recorded.code, recorded.out) == (bare.code, bare.out), _told(recorded)
    assert recorded.left == bare.left
    assert recorded.own_errors == bare.own_errors


def _assert_as_plain(
    plain: Ended,
    command: Sequence[object],
    folder: Path,
    env: dict[str, str] | None = None,
    stdin: Path | None = None,
) -> Ended:
    """Compare with the plain run; where it differs, with a bare run of the command itself."""
    recorded = run(command, folder, recorded=True, env=env, stdin=stdin)
    as_plain = (recorded.code, recorded.out) == (0, plain.out)
    if not (as_plain and not recorded.own_errors and recorded.left == plain.left):
        bare = run(command, folder, recorded=False, env=env, stdin=stdin)
        assert (bare.code, bare.out) == (0, plain.out), f"the bare run: {_told(bare)}"
        _assert_same(recorded, bare)
    return recorded


@pytest.mark.parametrize("case", cases_in(CASES))
def test_an_order_of_imports(case: str, plain: Ended, tmp_path: Path) -> None:
    recorded = _assert_as_plain(plain, [PYTHON, CASES, case], tmp_path)
    if case == "standard_finders_alone" and not recorded.is_recorded:
        _assert_no_lie(recorded.said)
    else:
        _assert_recorded(recorded)


LIES = (
    " -i ",  # the flag
    "no python",
    "not import",
    "never import",
    "no framework",
    "never train",
)


def _assert_no_lie(said: str) -> None:
    """Python ran, torch was imported, and the job trained; no flag hindered profkit."""
    low = said.lower()
    assert "nothing was recorded" in low
    for lie in LIES:
        assert lie not in low, said


def test_torch_that_cannot_be_imported_is_told_in_the_same_words(tmp_path: Path) -> None:
    command = [PYTHON, CASES, "broken_inside"]
    bare = run(command, tmp_path, recorded=False)
    assert bare.code == 0, bare.err
    assert bare.out.count("ImportError") == 2
    recorded = run(command, tmp_path, recorded=True)
    _assert_same(recorded, bare)
    assert not recorded.is_recorded


@pytest.mark.parametrize("first", ["model", "trainer"])
def test_the_trainer_of_transformers(
    first: str,
    transformers_alone: Ended,
    tmp_path: Path,
) -> None:
    command = [PYTHON, ORDERS / "order_transformers.py", first]
    recorded = run(command, tmp_path, recorded=True)
    _assert_same(recorded, transformers_alone)
    _assert_recorded(recorded, 20)


@pytest.fixture(scope="module")
def transformers_alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The order of its classes does not change the output of the bare script."""
    command = [PYTHON, ORDERS / "order_transformers.py", "trainer"]
    ended = run(command, tmp_path_factory.mktemp("transformers"), recorded=False)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("loss 20 ")
    return ended


def _module(folder: Path) -> dict[str, str]:
    """A package `pkg` with a module `train`, and the environment that finds it."""
    package = folder / "user" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(TRAIN, package / "train.py")
    return {"PYTHONPATH": str(package.parent)}


@launch
def run_path(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    code = f"import runpy; runpy.run_path({str(TRAIN)!r}, run_name='__main__')"
    return [PYTHON, "-c", code], {}, None


@launch
def run_module(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    code = "import runpy; runpy.run_module('pkg.train', run_name='__main__', alter_sys=True)"
    return [PYTHON, "-c", code], _module(folder), None


@launch
def module_flag(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    return [PYTHON, "-m", "pkg.train"], _module(folder), None


@launch
def exec_of_the_text(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    wrapper = folder / "wrapper.py"
    wrapper.write_text(f"exec(open({str(TRAIN)!r}).read())\n")
    return [PYTHON, wrapper], {}, None


@launch
def code_flag(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    return [PYTHON, "-c", TRAIN.read_text()], {}, None


@launch
def from_stdin(folder: Path) -> tuple[Sequence[object], dict[str, str], Path | None]:
    return [PYTHON, "-"], {}, TRAIN


@launch
def archive(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    source = folder / "app"
    source.mkdir()
    shutil.copy(TRAIN, source / "__main__.py")
    zipapp.create_archive(source, folder / "app.pyz")
    return [PYTHON, folder / "app.pyz"], {}, None


@launch
def optimised(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    return [PYTHON, "-O", TRAIN], {}, None


@launch
def deprecations_are_errors(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    return [PYTHON, "-W", "error::DeprecationWarning", TRAIN], {}, None


@launch
def shell_script(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nset -euo pipefail\npython {TRAIN}\n")
    script.chmod(0o755)
    return [script], {"PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}, None


@launch
def uv_run(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    if UV is None:
        pytest.skip("uv is not on PATH")
    found = [UV, "run", "--offline", "--quiet", "--no-project", "--python", PYTHON]
    return [*found, "python", TRAIN], {}, None


@launch
def script_with_a_shebang(folder: Path) -> tuple[Sequence[object], dict[str, str], None]:
    script = folder / "train"
    script.write_text(f"#!{PYTHON}\n{TRAIN.read_text()}")
    script.chmod(0o755)
    return [script], {}, None


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_way_to_start_python(name: str, plain: Ended, tmp_path: Path) -> None:
    command, env, stdin = LAUNCHES[name](tmp_path)
    _assert_recorded(_assert_as_plain(plain, command, tmp_path, env, stdin))


def test_import_times_are_still_told(plain: Ended, tmp_path: Path) -> None:
    recorded = run([PYTHON, "-X", "importtime", TRAIN], tmp_path, recorded=True)
    assert (recorded.code, recorded.out) == (0, plain.out), _told(recorded)
    own = recorded.own_errors
    assert any(line.endswith("| torch") for line in own)
    others = [line for line in own if line and not line.startswith("import time:")]
    assert others == []
    _assert_recorded(recorded)


COUNTED = """
import builtins
runs = getattr(builtins, "runs_of_sitecustomize", 0)
builtins.runs_of_sitecustomize = runs + 1
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """A program's view, bare and recorded, with a `sitecustomize` of the user's own."""
    folder = tmp_path_factory.mktemp("seen")
    user = folder / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text(COUNTED)
    env = {"PYTHONPATH": str(user)}
    told = []
    ended = []
    for recorded in (False, True):
        output = folder / f"seen-{recorded}.json"
        command = [PYTHON, ORDERS / "order_seen.py", output]
        ended.append(run(command, folder, recorded=recorded, env=env))
        assert ended[-1].code == 0, _told(ended[-1])
        told.append(json.loads(output.read_text()))
    _assert_same(ended[1], ended[0])
    _assert_recorded(ended[1])
    pairs = {name: (told[0][name], told[1][name]) for name in told[0]}
    for name, (bare, recorded_too) in pairs.items():
        if bare != recorded_too:
            print(f"{name}:\n  bare      {bare}\n  recorded  {recorded_too}")
    return pairs


UNCHANGED = (
    "loader",
    "loader of the spec",
    "loader of the spec found",
    "same loader",
    "contents of the loader",
    "loaders of inner modules",
    "file",
    "origin",
    "cached",
    "places",
    "source of Linear",
    "source of SGD",
    "source of torch",
    "source by the loader",
    "source by pkgutil",
    "resource",
    "type of the package's files",
    "sys.path",
    "import function",
    "sitecustomize",
    "runs of sitecustomize",
    "spec of sitecustomize",
)


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_program_sees_what_it_would(name: str, seen: dict[str, tuple[Any, Any]]) -> None:
    bare, recorded = seen[name]
    assert recorded == bare


def test_a_sitecustomize_of_the_users_own_runs_once(seen: dict[str, tuple[Any, Any]]) -> None:
    assert seen["runs of sitecustomize"] == (1, 1)
