"""`profkit run --repeats`: groups of runs, the order of two commands, and groups in explain."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.run.repeating import RepeatedJob, take_turns
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest
from profkit.trace.folders import find_group, find_runs, group_of

Capture = pytest.CaptureFixture[str]


def _script(folder: Path, name: str, words: str) -> str:
    path = folder / name
    path.write_text(words)
    return str(path)


def _groups(folder: Path) -> Counter[str]:
    return Counter(group_of(RunManifest.read(run)) for run in find_runs(folder))


def test_two_commands_run_in_turn_as_two_groups_of_one_workload(
    tmp_path: Path, capfd: Capture
) -> None:
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


def test_a_job_that_fails_ends_the_repeats_with_its_code(tmp_path: Path, capfd: Capture) -> None:
    script = _script(tmp_path, "fails.py", "raise SystemExit(7)")
    traces = tmp_path / "traces"
    command = ["run", "-o", str(traces), "--repeats", "3", "--", sys.executable, script]
    assert main(command) == 7
    assert len(find_runs(traces)) == 1
    assert "run 1 of fails failed" in capfd.readouterr().err


@pytest.mark.parametrize("against", ["python 'unclosed", "no-such-program x"])
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
