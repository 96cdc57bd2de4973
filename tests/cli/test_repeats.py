"""`profkit run --repeats`: groups of runs, the order of two commands, and groups in explain."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.repeats import group_repeats
from profkit.cli import main
from profkit.errors import ExitCode
from profkit.run import launch, repeating
from profkit.run.repeating import RepeatedJob, take_turns
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_group, find_runs, group_of, newest_run, session_of
from profkit.vocab import RunState

Capture = pytest.CaptureFixture[str]


def _script(folder: Path, name: str, words: str) -> str:
    path = folder / name
    path.write_text(words)
    return str(path)


def _groups(folder: Path) -> Counter[str]:
    return Counter(group_of(RunManifest.read(run)) for run in find_runs(folder))


def test_two_commands_run_in_turn_as_two_groups_of_one_workload(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_recorded(*arguments: Any, **options: Any) -> launch.Ended:
        """Run the job; that it recorded steps is made up, as a framework takes long to import."""
        return launch.run_job(*arguments, **options)._replace(run=Path("here"))

    monkeypatch.setattr(repeating, "run_job", run_recorded)
    log = tmp_path / "log"
    words = f"import sys; open({str(log)!r}, 'a').write(sys.argv[1])"
    old, new = (_script(tmp_path, name, words) for name in ("old.py", "new.py"))
    traces = tmp_path / "traces"
    command = ["run", "-o", str(traces), "--repeats", "3", "--against"]
    command += [f"{sys.executable} {old} b", "--", sys.executable, new, "t"]
    assert main(command) == ExitCode.DONE
    rounds = log.read_text()
    assert [sorted(rounds[place : place + 2]) for place in (0, 2, 4)] == [["b", "t"]] * 3
    assert _groups(traces) == {"new-base": 3, "new-target": 3}
    assert {RunManifest.read(run).workload for run in find_runs(traces)} == {"new"}
    for run in find_runs(traces):
        assert len(RunManifest.read(run).config["machine_probes"]) == 2
    assert f"profkit explain {traces}/new-base {traces}/new-target" in capfd.readouterr().err
    assert main([*command[:3], "--repeats", "1", "--", sys.executable, new, "t"]) == ExitCode.DONE
    assert _groups(traces)["new"] == 1
    assert main(command) == ExitCode.DONE
    assert _groups(traces)["new-2-base"] == 3, "another session is another group"
    sessions = {session_of(RunManifest.read(run))[1] for run in find_runs(traces)}
    assert len(sessions) == 3, "both groups of a session share it"
    capfd.readouterr()
    assert main([*command[:3], "--repeats", "1", "--", sys.executable, new, "t"]) == ExitCode.DONE
    assert f"profkit explain {traces}/new {traces}/new-2" in capfd.readouterr().err


def test_a_job_that_fails_ends_the_repeats_with_its_code(tmp_path: Path, capfd: Capture) -> None:
    script = _script(tmp_path, "fails.py", "raise SystemExit(7)")
    traces = tmp_path / "traces"
    command = ["run", "-o", str(traces), "--repeats", "3", "--", sys.executable, script]
    assert main(command) == 7
    assert len(find_runs(traces)) == 1
    assert "run 1 of fails failed" in capfd.readouterr().err


def test_a_job_that_is_not_recorded_ends_the_repeats(tmp_path: Path, capfd: Capture) -> None:
    traces = tmp_path / "traces"
    command = ["run", "-o", str(traces), "--repeats", "3", "--", sys.executable, "-c", "pass"]
    assert main(command) == ExitCode.UNFINISHED
    assert len(find_runs(traces)) == 1
    said = capfd.readouterr().err
    assert "recorded nothing, so no further run was started" in said
    assert "explain" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_repeats_of_a_job_that_handles_it(tmp_path: Path, number: int) -> None:
    handles = f"""
import os, signal, sys, time
signal.signal({number}, lambda *_: sys.exit(0))
os.kill(os.getppid(), {number})
if {number} == signal.SIGINT: sys.exit(0)  # a terminal sends it to both
time.sleep(60)
"""
    script = _script(tmp_path, "handles.py", handles)
    traces = tmp_path / "traces"
    command = [sys.executable, "-m", "profkit", "run", "-o", str(traces), "--repeats", "3"]
    command += ["--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -number
    assert _groups(traces) == {"handles": 1}
    assert f"was ended by {signal.Signals(number).name}, so no further run" in done.stderr


@pytest.mark.parametrize("against", ["python 'unclosed", "no-such-program x", "", "  "])
def test_nothing_runs_if_the_other_command_cannot(tmp_path: Path, against: str) -> None:
    traces = tmp_path / "traces"
    code = main(["run", "-o", str(traces), "--against", against, "--", sys.executable, "-c", ""])
    assert code in {ExitCode.USAGE, ExitCode.NOT_FOUND}
    assert not find_runs(traces)


def test_the_order_within_a_round_is_random() -> None:
    jobs = [RepeatedJob(("a",), "a"), RepeatedJob(("b",), "b")]
    firsts = set()
    for seed in range(20):
        turns = list(take_turns(jobs, 4, random.Random(seed)))
        assert Counter(job.group for _, job in turns) == {"a": 4, "b": 4}
        firsts.add("".join(job.group for number, job in turns if number == 1))
    assert firsts == {"ab", "ba"}


def test_explain_takes_groups_by_their_name(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "traces"
    for group, slower in (("before", 0), ("after", 9_000_000)):
        for number in range(3):
            synthetic_trace(
                traces / f"{group}-{number}",
                steps=60,
                seed=number,
                jitter=0.01,
                phase_ns={"forward": 12_000_000 + slower},
                config={"repeats": {"group": group, "number": number + 1, "of": 3}},
            )
    synthetic_trace(traces / "alone", steps=60)
    assert len(find_group(traces / "before")) == 3
    monkeypatch.chdir(tmp_path)
    for names in (["traces/before", "traces/after"], ["before", "after"]):
        assert main(["explain", *names, "--json"]) == ExitCode.DONE
        figures = json.loads(capsys.readouterr().out)
        assert figures["verdict"] == "regression"
        assert "and 2 repeats" in figures["base"]
        assert figures["between_runs"]["known_from"] == "repeats"
        assert all("repeats" not in each["name"] for each in figures["differences"])
    assert main(["explain", "before", "nothing"]) == ExitCode.UNREADABLE
    assert main(["report", "traces/before"]) == ExitCode.UNREADABLE
    assert "before: a group of 3 runs and no run; name one, such as" in capsys.readouterr().err


def _repeat(folder: Path, name: str, forward_ms: int, session: str, group: str = "job") -> Path:
    repeats = {"group": group, "number": 1, "of": 2, "session": session}
    return synthetic_trace(
        folder / name,
        steps=60,
        jitter=0.01,
        phase_ns={"forward": forward_ms * 1_000_000},
        config={"repeats": repeats} if group else {},
    )


def test_sessions_of_one_name_are_never_one_side(tmp_path: Path, capsys: Capture) -> None:
    """The job may have changed between them, so the newest session is the group."""
    for name, forward_ms, session in (
        ("a", 12, "first"),
        ("b", 12, "first"),
        ("c", 24, "second"),
        ("d", 24, "second"),
    ):
        _repeat(tmp_path, name, forward_ms, session)
    assert [run.name for run in find_group(tmp_path / "job")] == ["c", "d"]
    groups = group_repeats([Trace.open(run) for run in find_runs(tmp_path)])
    assert [[run.name for run in group] for group in groups] == [["a", "b"], ["c", "d"]]
    old = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    assert main(["explain", old, str(tmp_path / "job"), "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["verdict"] == "regression"
    assert main(["explain", str(tmp_path), str(tmp_path / "job")]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "holds runs of several sessions, between which the job may have changed" in said
    assert f"name one group ({tmp_path / 'job'})" in said


def _named(folder: Path, name: str, forward_ms: int, session: str = "", group: str = "job") -> str:
    run = _repeat(folder, name, forward_ms, session, group if session else "")
    made_s = len(find_runs(folder))
    os.utime(run / "run.json", (made_s, made_s))
    return str(folder / "job")


def _target(base: Path, target: str, capsys: Capture) -> str:
    assert main(["explain", str(base), target, "--json"]) == ExitCode.DONE
    return str(json.loads(capsys.readouterr().out)["target"])


def test_the_name_of_a_job_is_its_newest_run_or_group(tmp_path: Path, capsys: Capture) -> None:
    base = _repeat(tmp_path / "base", "base", 12, "", group="")
    job = _named(tmp_path, "job-20260101-000000", 12)
    _named(tmp_path, "job-2-20260101-000009", 12)
    _named(tmp_path, "job-base-20260101-000009", 12)
    _named(tmp_path, "jobs-20260101-000009", 12)
    assert _target(base, job, capsys) == "job-20260101-000000"
    _named(tmp_path, "job-20260101-000000-2", 12)
    assert _target(base, job, capsys) == "job-20260101-000000-2"
    _named(tmp_path, "job-20260101-000001", 12, "first")
    _named(tmp_path, "job-20260101-000002", 12, "first")
    assert _target(base, job, capsys).endswith("job-20260101-000001 and 1 repeat")
    _named(tmp_path, "job-20260101-000003", 12)
    assert _target(base, job, capsys) == "job-20260101-000003", "the group is of an older job"
    assert main(["report", job, "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["run"].endswith("job-20260101-000003")


def test_a_run_without_steps_is_not_the_newest(tmp_path: Path, capsys: Capture) -> None:
    """A job that fails before its first step leaves one."""
    early, late = tmp_path / "job-20260101-000000", tmp_path / "job-20260101-000001"
    synthetic_trace(early, steps=12)
    late.mkdir()
    RunManifest(workload="job", state=RunState.ABORTED).write(late)
    assert main(["report", "-o", str(tmp_path), "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert json.loads(shown.out)["run"] == str(early)
    assert shown.err == f"profkit: {late.name} has no step, so this is {early.name}\n"
    assert _target(early, str(tmp_path / "job"), capsys) == early.name
    assert main(["report", str(tmp_path)]) == ExitCode.UNREADABLE
    assert f"such as {early}" in capsys.readouterr().err
    shutil.rmtree(early)
    assert main(["report", "-o", str(tmp_path)]) == ExitCode.UNREADABLE
    assert f"{late}: holds no steps" in capsys.readouterr().err


def test_runs_are_called_by_the_beginning_of_their_names(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("plain-1", "plain-2", "padded"):
        _named(tmp_path / "traces", name, 12)
    for called, run in (("last", "padded"), ("prev", "plain-2"), ("pad", "padded")):
        assert main(["report", called, "--json"]) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["run"] == f"traces/{run}"
    assert _target(Path("prev"), "last", capsys) == "padded"
    assert main(["tui", "pad", "--json", "--screen", "runs"]) == ExitCode.USAGE  # it is of a folder
    assert main(["sql", "pad", "select 1 one"]) == ExitCode.DONE
    capsys.readouterr()
    assert main(["report", "plain"]) == ExitCode.USAGE
    assert "2 runs in traces begin with 'plain'; the newest are plain-1, plain-2" in (
        capsys.readouterr().err
    )
    for hour in ("08", "09"):
        _named(tmp_path / "traces", f"trained-20261129-{hour}0000", 12)
    for called in ("trained", "traces/trained"):  # the newest run of a job
        assert main(["report", called, "--json"]) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["run"] == "traces/trained-20261129-090000"
    assert main(["report", "nothing"]) == ExitCode.UNREADABLE
    assert "nothing: no such folder" in capsys.readouterr().err
    assert main(["report", "prev", "-o", "empty"]) == ExitCode.USAGE
    assert "prev: 0 runs with steps in empty; 'profkit run" in capsys.readouterr().err


def test_a_job_that_has_no_steps_yet_is_explained_and_followed(
    tmp_path: Path, capsys: Capture
) -> None:
    """It may stand still before its first one."""
    synthetic_trace(tmp_path / "before", steps=12)
    started = tmp_path / "started"
    started.mkdir()
    RunManifest(workload="job").write(started)
    main(["why", "-o", str(tmp_path), "--json"])
    assert capsys.readouterr().err == ""
    assert newest_run(find_runs(tmp_path), or_running=True) == started


def test_a_single_run_of_the_same_job_is_no_repeat_of_a_session(tmp_path: Path) -> None:
    _repeat(tmp_path, "a", 12, "first")
    _repeat(tmp_path, "b", 12, "", group="")
    _repeat(tmp_path, "c", 12, "", group="")
    groups = group_repeats([Trace.open(run) for run in find_runs(tmp_path)])
    assert [[run.name for run in group] for group in groups] == [["a"], ["b", "c"]]
