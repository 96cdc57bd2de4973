"""`profkit history`, and gates that all earlier baselines judge."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.views.history import PastRun, build_history, read_past_run, record_of
from profkit.cli import main
from profkit.errors import ExitCode
from profkit.report import history_document
from profkit.run import facts, run_folder
from profkit.run.wiring import complete_manifest
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest, Trace
from tests.house.test_packaging import TOP

Call = Callable[..., "tuple[int, str, str]"]
DAY_NS = 86_400_000_000_000
USUAL_NS = 24_000_000


@pytest.fixture
def profkit(capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(list(map(str, arguments)))
        return code, *capsys.readouterr()

    return call


def commit_number(number: int) -> str:
    return f"{number:02x}" * 20


def make_run(folder: Path, number: int, factor: float = 1.0, **options: Any) -> Path:
    """A run of a day; its backward pass takes `factor` times the usual time."""
    phase_ns = {"backward": int(USUAL_NS * factor)}
    run = synthetic_trace(
        folder / f"run-{number:02d}",
        **{"steps": 40, "seed": number, "jitter": 0.01, "phase_ns": phase_ns, **options},
    )
    manifest = RunManifest.read(run)
    dataclasses.replace(
        manifest,
        created_ns=manifest.created_ns + number * DAY_NS,
        environment={**manifest.environment, "revision": {"commit": commit_number(number)}},
    ).write(run)
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen runs; from the tenth on, a step takes 11 % longer. One run is of another job."""
    traces = tmp_path_factory.mktemp("history") / "traces"
    for number in range(14):
        make_run(traces, number, 1.2 if number >= 9 else 1.0)
    make_run(traces, 20, workload="another")
    broken = make_run(traces, 21)
    (broken / "run.json").write_text("{")
    return traces


def test_the_run_at_which_it_changed_is_named(profkit: Call, folder: Path) -> None:
    code, printed, _ = profkit("history", folder, "--json")
    found = json.loads(printed)
    assert code == ExitCode.DONE
    history = max(found["histories"], key=lambda each: len(each["runs"]))
    names = [run["run"] for run in history["runs"]]
    assert names == [f"run-{number:02d}" for number in range(14)]
    (change,) = history["changes"]
    assert change["first_run"] == "run-09"
    assert change["commit"] == commit_number(9)[:9]
    share = change["change_share"]
    assert share["value"] == pytest.approx(0.112, abs=0.01)
    assert 0.05 < share["low"] < share["value"] < share["high"]
    assert history["level_since"] == "run-09"
    assert found["runs_left_out"][0]["run"] == "run-21"
    another = min(found["histories"], key=lambda each: len(each["runs"]))
    assert "needs 7 more runs" in another["why_not_judged"]


def test_the_commit_is_the_one_that_the_recorder_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = commit_number(1)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(commit)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(facts, "LIMIT_S", 60)
    manifest = RunManifest.read(make_run(tmp_path, 1))
    manifest = dataclasses.replace(manifest, environment={}, config={"command": ["train.py"]})
    recorded = complete_manifest(manifest, created_ns=1, in_job=True)
    for revision, shown in (({}, commit[:9]), ({"dirty": True}, f"{commit[:9]}+")):
        known = {**recorded.environment["revision"], **revision}
        environment = {**recorded.environment, "revision": known}
        dataclasses.replace(recorded, environment=environment).write(tmp_path / "run-01")
        assert read_past_run(Trace.open(tmp_path / "run-01")).commit == shown
    record = record_of(tmp_path / "run-01")
    assert record["commit"] == f"{commit[:9]}+"


def test_a_recorded_run_has_its_commit() -> None:
    found = read_past_run(Trace.open(TOP / "traces" / "recorded-resnet50-workers-0"))
    assert re.fullmatch(r"[0-9a-f]{9}\+?", found.commit)


def test_another_device_is_another_history(profkit: Call, tmp_path: Path) -> None:
    """`profkit run` knows the device of each rank, and writes none into the run's settings."""
    make_run(tmp_path, 0)
    make_run(tmp_path, 1, device="cuda")
    histories = json.loads(profkit("history", tmp_path, "--json")[1])["histories"]
    assert [len(each["runs"]) for each in histories] == [1, 1]
    assert "synthetic, pytorch, 1 rank, cuda, batch 32" in profkit("history", tmp_path)[1]


def test_its_times_are_those_of_explain(profkit: Call, folder: Path) -> None:
    _, printed, _ = profkit("history", folder, "--json")
    histories = json.loads(printed)["histories"]
    runs = max(histories, key=lambda each: len(each["runs"]))["runs"]
    _, printed, _ = profkit("explain", folder / "run-00", folder / "run-09", "--json")
    total = json.loads(printed)["total"]
    assert runs[0]["ns_per_sample"] == pytest.approx(total["base_ns"]["value"], rel=1e-12)
    assert runs[9]["ns_per_sample"] == pytest.approx(total["target_ns"]["value"], rel=1e-12)


def test_the_screen_and_the_page_draw_it(profkit: Call, folder: Path, tmp_path: Path) -> None:
    _, printed, _ = profkit("history", folder)
    assert "Since run-09 (2023-11-23 22:13, commit 090909090 after 080808080) a sample" in (
        " ".join(printed.split())
    )
    assert printed.count("●") == 15
    assert max(map(len, printed.splitlines())) <= 100
    page = tmp_path / "history.html"
    assert profkit("history", folder, "-w", page)[0] == ExitCode.DONE
    content = page.read_text()
    assert content.count('class="used"') == 15
    assert "<svg" in content


@pytest.mark.parametrize(
    ("state", "why"),
    [("running", "it still runs, or it was killed"), ("aborted", "it was aborted")],
)
def test_a_run_without_a_good_end_has_no_figure(
    profkit: Call, tmp_path: Path, state: str, why: str
) -> None:
    run = make_run(tmp_path / "runs", 0)
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "state": state}))
    (left_out,) = json.loads(profkit("history", tmp_path / "runs", "--json")[1])["runs_left_out"]
    assert why in left_out.values()


@pytest.mark.parametrize("created_ns", [10**30, -(10**30), 2**63])
def test_a_run_with_a_damaged_date_is_left_out(
    profkit: Call, tmp_path: Path, created_ns: int
) -> None:
    good, bad = make_run(tmp_path / "runs", 0), make_run(tmp_path / "runs", 1)
    content = json.loads((bad / "run.json").read_text())
    (bad / "run.json").write_text(json.dumps({**content, "created_ns": created_ns}))
    code, printed, _ = profkit("history", tmp_path / "runs")
    assert code == ExitCode.DONE
    assert good.name in printed
    (left_out,) = json.loads(profkit("history", tmp_path / "runs", "--json")[1])["runs_left_out"]
    assert left_out["run"] == bad.name
    assert "run.json: field 'created_ns' is not a number below 2^63; the file is damaged" in (
        " ".join(str(left_out).split())
    )


@pytest.mark.parametrize(
    "damage",
    [
        {"setting": ["job", "pytorch"]},
        {"ns_per_sample": 10**400},
        {"ns_per_sample": 1e300},
        {"ns_per_sample": 5e-324},
        {"ns_per_sample": -1},
        {"created_ns": 10**30},
        {"created_ns": True},
    ],
)
def test_damaged_records_of_a_baseline_are_left_out(
    profkit: Call, tmp_path: Path, damage: dict[str, Any]
) -> None:
    kept = "--baselines", tmp_path / "kept"
    for number in range(2):
        run = make_run(tmp_path / "runs", number)
        assert profkit("explain", *kept, "--save-baseline", "main", run)[0] == ExitCode.DONE
    pointer = tmp_path / "kept" / "main.json"
    content = json.loads(pointer.read_text())
    content["past"][0].update(damage)
    pointer.write_text(json.dumps(content))
    for words in ((), ("--json",)):
        code, printed, _ = profkit("history", "--baseline", "main", *kept, *words)
        assert code == ExitCode.DONE
    (history,) = json.loads(printed)["histories"]
    assert [each["run"] for each in history["runs"]] == ["run-01"]
    other = make_run(tmp_path / "runs", 2)
    assert profkit("explain", *kept, "--baseline", "main", other)[0] == ExitCode.DONE


def test_the_last_runs_alone(profkit: Call, folder: Path) -> None:
    _, printed, _ = profkit("history", folder, "--last", "4", "--json")
    assert max(len(each["runs"]) for each in json.loads(printed)["histories"]) == 4


def test_a_folder_without_runs_is_one_clear_line(profkit: Call, tmp_path: Path) -> None:
    code, _, said = profkit("history", tmp_path)
    assert code == ExitCode.UNREADABLE
    assert "holds no runs; make one with" in said
    assert "no such folder" in profkit("history", tmp_path / "none")[2]


def test_earlier_baselines_judge_the_gate(profkit: Call, tmp_path: Path) -> None:
    """The last baseline was disturbed: against it alone, a slower run would pass."""
    kept = "--baselines", tmp_path / "kept"
    for number in range(8):
        run = make_run(tmp_path / "runs", number, 1.12 if number == 7 else 1.0)
        assert profkit("explain", *kept, "--save-baseline", "main", run)[0] == ExitCode.DONE
    slow = make_run(tmp_path / "runs", 30, 1.12)
    command = ("explain", *kept, "--baseline", "main", slow, "--gate", "2%")
    code, printed, _ = profkit(*command, "--json")
    found = json.loads(printed)
    assert found["past"]["runs_at_level"] == 8
    assert found["past"]["change_share"]["low"] > 0
    assert code == ExitCode.REGRESSION, found["gates"]
    assert "against 8 earlier baselines" in found["gates"][0]["why"]
    _, printed, _ = profkit(*command)
    assert "Against all earlier baselines" in printed
    _, printed, _ = profkit("history", "--baseline", "main", *kept, "--json")
    assert len(json.loads(printed)["histories"][0]["runs"]) == 8


def test_with_few_baselines_the_pair_judges(profkit: Call, tmp_path: Path) -> None:
    kept = "--baselines", tmp_path / "kept"
    run = make_run(tmp_path / "runs", 0)
    profkit("explain", *kept, "--save-baseline", "main", run)
    profkit("explain", *kept, "--save-baseline", "main", run)
    slow = make_run(tmp_path / "runs", 1, 1.5)
    command = ("explain", *kept, "--baseline", "main", slow, "--gate", "3%", "--json")
    code, printed, _ = profkit(*command)
    found = json.loads(printed)
    assert code == ExitCode.REGRESSION
    assert found["past"]["runs_at_level"] == 1, "the same run saved twice is one"
    assert found["past"]["change_share"] is None
    assert "earlier baseline" not in found["gates"][0]["why"]


def test_another_setting_is_no_part_of_the_past(profkit: Call, tmp_path: Path) -> None:
    kept = "--baselines", tmp_path / "kept"
    run = make_run(tmp_path / "runs", 0)
    profkit("explain", *kept, "--save-baseline", "main", run)
    other = make_run(tmp_path / "runs", 1, batch_size=64)
    _, printed, _ = profkit("explain", *kept, "--baseline", "main", other, "--json")
    assert "past" not in json.loads(printed)


# -- the action ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate_script() -> str:
    """The shell script of the step that judges."""
    content = (TOP / "action.yml").read_text()
    block = content.partition("      run: |\n")[2].partition("\n\n")[0]
    return re.sub(r"^ {8}", "", block, flags=re.MULTILINE)


def run_action(script: str, folder: Path, **inputs: str) -> tuple[int, str, str]:
    """Run the step as a GitHub job does; return its exit code, its output, and what it printed."""
    import os
    import sys

    output = folder / "output"
    output.write_text("")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "BASELINE": "main",
        "BASELINES": str(folder / "kept"),
        "GATES": "3%\ninput=50%\n",
        "LAST": "50",
        "SAVE": "false",
        **inputs,
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        env=environment,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    code = output.read_text().strip().removeprefix("exit-code=")
    return done.returncode, code, done.stdout


def test_the_action_saves_passes_and_fails(gate_script: str, tmp_path: Path) -> None:
    base, slow = make_run(tmp_path / "runs", 0), make_run(tmp_path / "runs", 1, 1.5)
    for save, code, words in (
        ("false", "11", "there is no baseline 'main' yet, so the run was not judged"),
        ("true", "0", "there is no baseline 'main' yet, so the run becomes the first one"),
    ):
        shown = run_action(gate_script, tmp_path, RUN=str(base), SAVE=save)
        assert shown[:2] == (0, code)
        assert f"::warning::profkit: {words}" in shown[2]
    assert (tmp_path / "kept" / "main.json").exists()
    assert run_action(gate_script, tmp_path, RUN=str(slow))[:2] == (10, "10")
    assert "regression" in (tmp_path / "summary.md").read_text()
    assert run_action(gate_script, tmp_path, RUN=str(base))[:2] in {(0, "0"), (0, "11")}
    assert run_action(gate_script, tmp_path, RUN=str(tmp_path / "none"))[1] == "3"


def record_as(folder: Path, name: str, number: int, factor: float) -> Path:
    """A run in the folder that `profkit run --name NAME` makes."""
    made = make_run(folder / "made", number, factor)
    run = run_folder.make_run(folder / "traces", name, RunManifest.read(made))
    shutil.copytree(made, run, dirs_exist_ok=True)
    return run


def test_the_documented_workflow_saves_and_judges_the_newest_run_of_its_name(
    gate_script: str, tmp_path: Path
) -> None:
    """Nobody can write the name of a folder into a workflow that ends in the time of the run."""
    page = (TOP / "docs" / "history.md").read_text()
    block = page.partition("```yaml\n")[2].partition("```")[0]
    (name,) = re.findall(r"profkit run --name (\S+) -- ", block)
    inputs = dict(re.findall(r"^    (\w+): (.*)$", block, flags=re.MULTILINE))
    assert list(inputs) == ["run", "gate", "save"]
    words = {"RUN": inputs["run"], "GATES": inputs["gate"]}
    first = record_as(tmp_path, name, 0, 1.0)
    record_as(tmp_path, f"{name}-other", 2, 1.0)
    done = run_action(gate_script, tmp_path, **words, SAVE="true")
    assert done[:2] == (0, "0"), done
    kept = json.loads((tmp_path / "kept" / "main.json").read_text())
    assert kept["saved_from"] == str(first)
    record_as(tmp_path, name, 1, 1.5)
    assert run_action(gate_script, tmp_path, **words)[:2] == (10, "10")


def test_the_action_restores_baselines_of_its_own_name_only() -> None:
    """A cache is restored if its key begins with `restore-keys`; the newest one wins."""
    content = (TOP / "action.yml").read_text()
    (prefix,) = re.findall(r"restore-keys: (.*)", content)
    keys = re.findall(r"  key: (.*)", content)
    assert len(keys) == 2
    for key in keys:
        saved = key.replace("${{ inputs.baseline }}", "main-gpu")
        assert not saved.startswith(prefix.replace("${{ inputs.baseline }}", "main"))
        assert not saved.startswith(prefix.replace("${{ inputs.baseline }}", "main-gp"))
        assert saved.startswith(prefix.replace("${{ inputs.baseline }}", "main-gpu"))
        assert "," not in key


def test_the_action_takes_no_input_into_its_script(gate_script: str) -> None:
    """An input in a script would be run by the shell; they are all variables."""
    assert "${{" not in gate_script


def test_runs_of_very_different_times_have_a_spread_that_a_reader_knows() -> None:
    """The deviation of logarithms was printed as a percentage: 338 % of what?"""
    times = [1e6 * 10.0 ** (number % 4) for number in (0, 3, 1, 2, 3, 0, 2, 1, 0, 3)]
    runs = [PastRun(f"r{at}", at + 1, ns, ("job", "torch", *"1234")) for at, ns in enumerate(times)]
    (sentence,) = history_document.words(build_history(runs))
    expected = 100 * np.std(times, ddof=1) / np.mean(times)
    assert "a sample takes 1.00 ms to 1.00 s, median 55.0 ms" in sentence
    assert f"(standard deviation {expected:.1f} % of the mean)" in sentence
