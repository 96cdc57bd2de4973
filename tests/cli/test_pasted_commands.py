"""Commands that profkit suggests can be pasted, whatever the folders of runs are called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from profkit import cli
from profkit.commands._trace_alone import print_place, show
from profkit.errors import ProfkitError
from profkit.run.repeating import RepeatedJob, _conclusion
from profkit.testing.synthetic import synthetic_trace
from profkit.text import safe_text, shell_word
from profkit.vocab import rank_folder

NAMES = (
    "plain-1.2_x",
    "a run",
    "it's",
    '"quoted"',
    "$(false) `false` $HOME",
    "a;b&c|d>e*f?",
    "Grüße 训练",
    "back\\slash",
    "line\nbreak\x1b[31m",
    "turned\u202e and it's\\n",
    "byte-\udcff",
    "",
)


def pasted(words: str) -> list[str]:
    """Return the arguments that a shell makes of these words."""
    script = f"printf '%s\\0' {words}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_word_is_read_as_it_was_by_a_shell_and_is_safe_to_print(name: str) -> None:
    word = shell_word(name)
    assert safe_text(word) == word
    assert pasted(word) == [name]


@pytest.fixture(params=NAMES[1:6] + NAMES[8:9])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return synthetic_trace(tmp_path / request.param, steps=20)


def command_in(text: str, verb: str) -> list[str]:
    """Return the arguments of the last command of a verb, which ends its line."""
    before, _, rest = text.rstrip("\n").rpartition(f"profkit {verb} ")
    if before.endswith("'"):  # (see 'profkit VERB RUN')
        rest = rest.removesuffix(")").removesuffix("'")
    return pasted(rest)


def test_a_run_without_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank = run / rank_folder(0)
    (rank / "steps.arrows").unlink()
    (rank / "end.json").unlink()
    assert cli.main(["explain", str(run), str(run)])
    cli.main(["tui", str(run), "--screen", "overview", "--json"])
    assert command_in(capsys.readouterr().err, "verify") == [str(run)]


def test_a_job_that_was_stopped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_place(run, ProfkitError())
    assert command_in(capsys.readouterr().err, "report") == [str(run)]


def test_a_job_that_ended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(run, json=False)
    assert command_in(capsys.readouterr().out, "report") == [str(run)]


def test_repeats_of_two_commands(run: Path) -> None:
    jobs = [RepeatedJob(("true",), f"{run.name} {side}") for side in ("base", "target")]
    said = _conclusion(jobs, 3, run.parent)
    expected = [str(run.parent / job.group) for job in jobs]
    assert command_in(said, "explain") == expected
    again = RepeatedJob(("true",), "new", earlier=run.name)
    expected = [str(run), str(run.parent / "new")]
    assert command_in(_conclusion([again], 3, run.parent), "explain") == expected
