"""The verbs that read, through the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_a_report_and_its_json_tell_the_same(profkit: Command, run: Path) -> None:
    text, data = profkit("report", run), profkit("report", run, "--json")
    assert (text.returncode, data.returncode, text.stderr, data.stderr) == (0, 0, "", "")
    figures = json.loads(data.stdout)
    assert (
        figures["steps_used"] + sum(figures["steps_left_out"].values())
        == figures["steps_seen"]
        == 60
    )
    assert f"{figures['steps_used']} of 60 steps used" in text.stdout
    assert f"{figures['throughput_samples_per_s']['value']:.4g}" in text.stdout.replace(",", "")
    shares = [part["share"]["value"] for part in figures["phases"]]
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert f"{100 * shares[0]:.1f} %" in text.stdout


def test_the_newest_run_is_shown_where_none_is_named(profkit: Command, run: Path) -> None:
    assert json.loads(profkit("report", "--json", "--output", run.parent).stdout)["run"] == str(run)


def test_no_run_at_all_says_how_to_make_one(profkit: Command) -> None:
    done = profkit("report")
    assert done.returncode == 2
    assert "profkit run -- COMMAND" in done.stderr


def test_verify_names_the_state(profkit: Command, run: Path) -> None:
    done = profkit("verify", run)
    assert done.returncode == 0
    assert done.stdout.startswith("complete: ")
    data = json.loads(profkit("verify", run, "--json").stdout)
    assert (data["state"], data["rows_lost"], data["rows_dropped"]) == ("complete", 0, 0)
    assert {table["table"] for table in data["tables"]} >= {"steps", "spans", "strings"}


def test_the_schema_in_three_forms(profkit: Command) -> None:
    assert "grad_scale" in profkit("schema").stdout
    assert json.loads(profkit("schema", "--json").stdout)["tables"]["steps"][0]["column"] == "rank"
    assert profkit("schema", "--markdown").stdout.startswith("# The trace contract")


def test_the_workloads_and_their_json(profkit: Command) -> None:
    assert "resnet50" in profkit("workloads").stdout
    assert "resnet50" in {
        each["name"] for each in json.loads(profkit("workloads", "--json").stdout)
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_completions_for_each_shell(profkit: Command, shell: str) -> None:
    assert "trace" in profkit("completions", shell).stdout


def test_bash_completes_verbs_runs_and_causes(profkit: Command, tmp_path: Path) -> None:
    script = tmp_path / "profkit.bash"
    script.write_text(profkit("completions", "bash").stdout)
    (tmp_path / "traces" / "plain-1").mkdir(parents=True)
    asked = {"ver": "verify", "report pl": "plain-1", "whatif --without input_b": "input_bound"}
    for typed, offered in asked.items():
        words = f"COMP_WORDS=(profkit {typed}); COMP_CWORD={len(typed.split())}"
        begun = typed.split()[-1]
        code = f'source {script}; {words}; _shtab_profkit "" {begun}; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [offered]


def test_a_closed_pipe_is_no_error(run: Path) -> None:
    command = f"{sys.executable} -m profkit schema | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
