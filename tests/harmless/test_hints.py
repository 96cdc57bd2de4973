"""If nothing is recorded, `profkit run` reports what it observed, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harmless.commands import PYTHON, Ended, run

TRAIN = Path(__file__).parent / "jobs" / "orders" / "order_train.py"
DIGEST = re.compile(r"^digest [0-9a-f]{64}$", re.MULTILINE)
SUDO = shutil.which("sudo")
FLAG_ADVICE = re.compile(r"(?<![\w-])-[IES]\b")  # a flag named as such
NO_PYTHON = re.compile(r"\b(no|not a|not any|never a|without( a)?) python\b", re.IGNORECASE)
NO_PYTHON_SEEN = re.compile(
    r"\bno python\b( \w+)?( was| were)? (seen|started|found|ran|run)\b",
    re.IGNORECASE,
)
UNIMPORTED = re.compile(
    r"((no|neither|not|never|none|without)\b.*\b(import|load)"
    r"|(import|load)\w*\b.*\b(no|neither|nor|not|never|none)\b)",
    re.IGNORECASE,
)
IMPORTED = re.compile(r"\bimport(ed|s)?\b|\bload(ed|s)?\b", re.IGNORECASE)
UNTRAINED = re.compile(
    r"\b(no|not|never|without|none|neither)\b[^.;]*\b(train|step|backward|optimi)",
    re.IGNORECASE,
)
NEVER_TRAINED = re.compile(r"\b(never|not|no) (been )?(train|step)", re.IGNORECASE)
TOO_SHORT = re.compile(
    r"\b(short|brief|briefly|soon|early|long enough|before|too (few|little)|instant|abrupt|only)\b",
    re.IGNORECASE,
)
ENVIRONMENT = re.compile(r"\b(environment|variables?|PYTHONPATH|PROFKIT_\w+)\b")
LACKS_PROFKIT = re.compile(
    r"\b(no|without|lacks?|not have|n't have|cannot import|n't import)\b[^.;:]{0,30}\bprofkit\b"
    r"|\bprofkit\b[^.;:]{0,30}(\b(not|no|missing|absent)\b|n't)",
)


def _hint(ended: Ended, code: int) -> str:
    """The hint's lines as one; the exit code is the job's."""
    assert ended.code == code, ended.err
    assert not ended.ranks
    assert "Traceback" not in ended.err
    assert "nothing was recorded" in ended.said, ended.err
    return " ".join(ended.said.split())


def _names_the_flag(hint: str, flag: str) -> None:
    """The flag that was given, and none of the others."""
    named = {found.group() for found in FLAG_ADVICE.finditer(hint)}
    assert flag in named, hint
    assert named == {flag}, hint


def _claims_no_more_than_python_ran(hint: str) -> None:
    """A Python that trained unseen: nobody may say that there was none, or no import."""
    assert not NO_PYTHON_SEEN.search(hint), hint
    assert "no framework" not in hint.lower(), hint


def _trains(folder: Path, code: int = 0) -> Path:
    """The training script, ended with this exit code."""
    script = folder / "train.py"
    script.write_text(TRAIN.read_text() + (f"    raise SystemExit({code})\n" if code else ""))
    return script


def _script(folder: Path, line: str) -> Path:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{line}\n")
    script.chmod(0o755)
    return script


def test_a_script_that_sets_pythonpath(tmp_path: Path) -> None:
    """It is recorded all the same, or told which variable it replaced."""
    script = _script(tmp_path, f"PYTHONPATH=. {PYTHON} -B {_trains(tmp_path, 6)}")
    ended = run([script], tmp_path, recorded=True)
    assert ended.code == 6, ended.err
    assert DIGEST.search(ended.out)
    if not ended.is_recorded:
        hint = _hint(ended, 6)
        assert "PYTHONPATH" in hint
        assert not FLAG_ADVICE.search(hint), hint
        _claims_no_more_than_python_ran(hint)


def _without_environment(folder: Path) -> list[Sequence[object]]:
    job = [PYTHON, "-B", _trains(folder, 6)]
    found: list[Sequence[object]] = [["env", "-i", *job]]
    if SUDO is not None and not subprocess.run([SUDO, "-n", "true"], check=False).returncode:
        found += [[SUDO, "-n", *job], [SUDO, "-n", "-E", *job]]
    return found


@pytest.mark.parametrize("number", range(3), ids=["env -i", "sudo", "sudo -E"])
def test_a_job_whose_environment_is_taken_away(number: int, tmp_path: Path) -> None:
    commands = _without_environment(tmp_path)
    if number >= len(commands):
        pytest.skip("sudo is not to be had here")
    ended = run(commands[number], tmp_path, recorded=True)
    assert ended.code == 6, ended.err
    assert DIGEST.search(ended.out)
    if not ended.is_recorded:
        hint = _hint(ended, 6).replace("sudo -E", "sudo")
        assert ENVIRONMENT.search(hint), hint
        assert not FLAG_ADVICE.search(hint), hint
        _claims_no_more_than_python_ran(hint)


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_is_told_to_ignore_profkit(flag: str, tmp_path: Path) -> None:
    script = _trains(tmp_path, 6)
    if flag == "-S":  # without `site` there are no packages but those that one adds oneself
        packages = sysconfig.get_paths()["purelib"]
        text = script.read_text().split("\n\n", 2)
        added = f"{text[1]}\nimport sys\nsys.path.append({packages!r})"
        script.write_text("\n\n".join([text[0], added, text[2]]))
    ended = run([PYTHON, "-B", flag, script], tmp_path, recorded=True)
    assert ended.code == 6, ended.err
    assert DIGEST.search(ended.out)
    if not ended.is_recorded:
        hint = _hint(ended, 6)
        _names_the_flag(hint, flag)
        _claims_no_more_than_python_ran(hint)


def _environment(folder: Path, *, packages: bool) -> Path:
    """The Python of a new environment without profkit, on request with all else from here."""
    place = folder / "other"
    base = str(Path(PYTHON).resolve())
    subprocess.run([base, "-m", "venv", "--without-pip", str(place)], check=True)
    if packages:
        here = Path(sysconfig.get_paths()["purelib"])
        there = place / "lib" / here.parent.name / "site-packages"
        for entry in here.iterdir():
            if "profkit" not in entry.name and not (there / entry.name).exists():
                (there / entry.name).symlink_to(entry)
    return place / "bin" / "python"


@pytest.mark.parametrize("packages", [False, True], ids=["empty", "with torch"])
def test_a_python_of_an_environment_without_profkit(packages: bool, tmp_path: Path) -> None:
    python = _environment(tmp_path, packages=packages)
    bare = [str(python), "-c", "import profkit"]
    assert subprocess.run(bare, cwd=tmp_path, capture_output=True, check=False).returncode
    job = [_trains(tmp_path, 6)] if packages else ["-c", "import time; time.sleep(0.5); exit(6)"]
    ended = run([python, *job], tmp_path, recorded=True)
    assert bool(DIGEST.search(ended.out)) == packages, ended.err
    assert ended.own_errors == []
    if packages and ended.is_recorded:
        return
    hint = _hint(ended, 6)
    assert str(python.parent.parent) in hint
    assert LACKS_PROFKIT.search(hint), hint
    assert not FLAG_ADVICE.search(hint), hint
    assert not NO_PYTHON_SEEN.search(hint), hint


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["ls", "/"], 0),
        (["sleep", "0.3"], 0),
        (["sh", "-c", "sleep 0.2; exit 6"], 6),
        (["sh", "-c", "echo python train.py; exit 6"], 6),
    ],
    ids=["ls", "sleep", "sh", "a word alone"],
)
def test_a_command_that_starts_no_python(
    command: list[str],
    code: int,
    tmp_path: Path,
) -> None:
    hint = _hint(run(command, tmp_path, recorded=True), code)
    assert NO_PYTHON.search(hint), hint
    assert not FLAG_ADVICE.search(hint), hint
    assert "long enough" not in hint


@pytest.mark.parametrize("pause", [0, 0.5])
def test_a_python_that_imports_no_framework(pause: float, tmp_path: Path) -> None:
    code = f"import time; time.sleep({pause}); print('hello'); raise SystemExit(5)"
    ended = run([PYTHON, "-c", code], tmp_path, recorded=True)
    assert ended.out == "hello\n"
    hint = _hint(ended, 5)
    assert UNIMPORTED.search(hint), hint
    assert re.search(r"torch|paddle|framework", hint, re.IGNORECASE), hint
    assert not NO_PYTHON_SEEN.search(hint), hint
    assert not FLAG_ADVICE.search(hint), hint
    assert "long enough" not in hint


def test_a_python_that_imports_torch_and_does_not_train(tmp_path: Path) -> None:
    code = "import time, torch; print(torch.ones(2).sum().item()); time.sleep(0.5); exit(5)"
    ended = run([PYTHON, "-c", code], tmp_path, recorded=True)
    assert ended.out == "2.0\n"
    hint = _hint(ended, 5)
    assert re.search(r"\b(py)?torch\b", hint, re.IGNORECASE), hint
    assert IMPORTED.search(hint), hint
    assert UNTRAINED.search(hint), hint
    assert not NO_PYTHON_SEEN.search(hint), hint
    assert not FLAG_ADVICE.search(hint), hint


def test_a_python_that_evaluates_only(tmp_path: Path) -> None:
    """Forward passes without gradients are no training."""
    code = (
        "import time, torch\n"
        "model = torch.nn.Linear(4, 2).eval()\n"
        "with torch.inference_mode():\n"
        "    for _ in range(20):\n"
        "        model(torch.ones(3, 4)); time.sleep(0.02)\n"
        "raise SystemExit(5)\n"
    )
    hint = _hint(run([PYTHON, "-c", code], tmp_path, recorded=True), 5)
    assert IMPORTED.search(hint), hint
    assert UNTRAINED.search(hint), hint
    assert not FLAG_ADVICE.search(hint), hint


def test_a_training_that_is_over_in_an_instant(tmp_path: Path) -> None:
    """It is recorded, or told that it trained and was too short."""
    code = (
        "import os, torch\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(3, 4)).sum().backward(); optimizer.step()\n"
        "os._exit(3)\n"
    )
    ended = run([PYTHON, "-c", code], tmp_path, recorded=True)
    assert ended.code == 3
    if not ended.is_recorded:
        hint = _hint(ended, 3)
        assert re.search(r"\btrain|\bstep", hint), hint
        assert TOO_SHORT.search(hint), hint
        assert not NEVER_TRAINED.search(hint), hint
        assert not FLAG_ADVICE.search(hint), hint
        assert not NO_PYTHON_SEEN.search(hint), hint


def test_disabled_is_silent(tmp_path: Path) -> None:
    code = "import sys; print('hello'); print('own', file=sys.stderr); raise SystemExit(5)"
    env = {"PROFKIT_DISABLE": "1"}
    ended = run([PYTHON, "-c", code], tmp_path, recorded=True, env=env)
    assert (ended.code, ended.out, ended.err, ended.runs) == (5, "hello\n", "own\n", ())


def test_what_ran_is_told_apart_in_a_job_of_several_programs(tmp_path: Path) -> None:
    """A helper without a framework, then a training that profkit cannot see."""
    line = f"{PYTHON} -c pass\n{PYTHON} -B -I {_trains(tmp_path, 6)}"
    ended = run([_script(tmp_path, line)], tmp_path, recorded=True)
    assert ended.code == 6, ended.err
    if not ended.is_recorded:
        _names_the_flag(_hint(ended, 6), "-I")


def test_a_recorded_job_is_given_no_advice(tmp_path: Path) -> None:
    """A helper without a framework is no reason to doubt the training next to it."""
    line = f"{PYTHON} -c pass\nls /\n{PYTHON} -B {_trains(tmp_path, 6)}"
    ended = run([_script(tmp_path, line)], tmp_path, recorded=True)
    assert ended.code == 6, ended.err
    assert ended.ranks == ["r00000"]
    assert [line.split()[1] for line in ended.said.splitlines()] == ["recording;", "1"]
