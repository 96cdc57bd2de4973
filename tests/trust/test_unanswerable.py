"""Every kind of unanswerable question gives `cannot judge` or an error, never a pass."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.testing import synthetic_trace

MS = 1_000_000
CANNOT = "cannot judge"

Ask = Callable[..., "tuple[int, Any]"]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The exit code and the JSON, or the error."""

    def call(*arguments: object) -> tuple[int, Any]:
        code = main([*map(str, arguments), "--json"])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else said.err

    return call


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_trace(
        tmp_path_factory.mktemp("runs") / "whole", ranks=2, steps=120, config={"device": "cpu"}
    )


def _made(**options: Any) -> Callable[[Path, Path], Path]:
    return lambda whole, folder: synthetic_trace(
        folder / "run",
        **{"ranks": 2, "steps": 120, "seed": 5, "config": {"device": "cpu"}, **options},
    )


def _told(**changes: Any) -> Callable[[Path, Path], Path]:
    """The whole run with other words in its manifest."""

    def make(whole: Path, folder: Path) -> Path:
        run = Path(shutil.copytree(whole, folder / "run"))
        content = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(
            json.dumps(
                {**content, **changes, "config": {**content["config"], **changes.get("config", {})}}
            )
        )
        return run

    return make


def _harmed(harm: Callable[[Path], object]) -> Callable[[Path, Path], Path]:
    def make(whole: Path, folder: Path) -> Path:
        run = Path(shutil.copytree(whole, folder / "run"))
        harm(run)
        return run

    return make


def _flip_quietly(run: Path) -> None:
    """Another value in a file that is still well formed: only its checksum tells."""
    path = run / "r00000" / "end.json"
    content = json.loads(path.read_text())
    content["tables"]["steps"]["crc32"] ^= 1
    path.write_text(json.dumps(content))


def _cut_steps(run: Path) -> None:
    for rank in ("r00000", "r00001"):
        os.truncate(run / rank / "steps.arrows", 0)


ALONE: dict[str, Callable[[Path, Path], Path]] = {
    "two steps": _made(steps=2),
    "all steps are warm-up": _made(steps=12, config={"device": "cpu", "warmup": 12}),
    "no samples known": _made(batch_size=0),
    "times that cannot be": _told(
        flags=[{"kind": "bad_times", "text": "dropped 7 kernels of 236 years"}]
    ),
    "a file that was changed": _harmed(_flip_quietly),
    "no steps left": _harmed(_cut_steps),
    "a rank without steps": _harmed(
        lambda run: shutil.copyfile(
            run / "r00001" / "samples.arrows", run / "r00001" / "steps.arrows"
        )
    ),
    "a rank without files": _harmed(lambda run: shutil.rmtree(run / "r00001")),
    "nothing there": _harmed(shutil.rmtree),
    "no manifest": _harmed(lambda run: (run / "run.json").unlink()),
    "a manifest of a later major version": _told(schema_version=[3, 0]),
}
"""Runs of which no throughput can be told."""

BESIDE: dict[str, Callable[[Path, Path], Path]] = {
    **{
        name: make
        for name, make in ALONE.items()
        if name not in {"no samples known", "a rank without steps", "a rank without files"}
    },
    "another device": _made(config={"device": "cuda:0"}),
    "another processor": _told(environment={"cpu": "another one"}),
    "another workload": _made(workload="another"),
    "an interval that says nothing": _made(steps=24, jitter=0.9, seed=8, steps_per_epoch=0),
}
"""Runs that cannot be compared with the whole one.

Steps can be compared if samples are not known, and GPU times if a rank is missing.
"""


@pytest.mark.parametrize("make", ALONE.values(), ids=ALONE)
def test_of_one_run(
    ask: Ask, whole: Path, tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    code, said = ask("report", make(whole, tmp_path))
    assert code == ExitCode.UNREADABLE or (code == ExitCode.DONE and said["verdict"] == CANNOT)


DOUBTFUL = ("times that cannot be", "a file that was changed", "no samples known",
            "a rank without steps", "a rank without files")  # fmt: skip


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_no_export_states_its_throughput(whole: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'prometheus' is not installed")
    run = ALONE[kind](whole, tmp_path)
    textfile, row = tmp_path / "run.prom", tmp_path / "row.txt"
    assert main(["export", str(run), "--format", "prometheus", "-w", str(textfile)]) == 0
    metrics = textfile.read_text()
    assert "profkit_throughput" not in metrics
    times_known = kind in {"no samples known", "a rank without steps", "a rank without files"}
    assert ("profkit_step_seconds{" in metrics) == times_known
    assert ("profkit_phase_ratio{" in metrics) == times_known
    assert main(["export", str(run), "--format", "benchmark", "-w", str(row)]) == 0
    first, *lines = row.read_text().splitlines()
    fields = json.loads(first)
    assert (fields["FINAL_RESULT"], fields["JOB_FAIL_FLAG"], lines) == (None, 1, [])


def test_an_export_of_the_whole_run_states_its_throughput(whole: Path, tmp_path: Path) -> None:
    row = tmp_path / "row.txt"
    assert main(["export", str(whole), "--format", "benchmark", "-w", str(row)]) == 0
    first, *lines = row.read_text().splitlines()
    assert json.loads(first)["FINAL_RESULT"] > 0
    assert len(lines) == 1


@pytest.mark.parametrize("swapped", [False, True], ids=["as target", "as base"])
@pytest.mark.parametrize("make", BESIDE.values(), ids=BESIDE)
def test_of_two_runs(
    ask: Ask, whole: Path, tmp_path: Path, make: Callable[[Path, Path], Path], swapped: bool
) -> None:
    _give_cpu(whole)
    run = make(whole, tmp_path)
    pair = [run, whole] if swapped else [whole, run]
    code, said = ask("explain", *pair, "--gate", "3%")
    assert code == ExitCode.UNREADABLE or (
        code == ExitCode.NOT_JUDGED and said["verdict"] == CANNOT and said["why_not_judged"]
    ), said


@pytest.mark.parametrize("make", BESIDE.values(), ids=BESIDE)
def test_of_a_run_and_a_baseline(
    ask: Ask, whole: Path, tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    """A baseline has a history, in which a run without a figure has no place."""
    _give_cpu(whole)
    kept = "--baselines", tmp_path / "kept"
    assert ask("explain", *kept, "--save-baseline", "main", whole)[0] == ExitCode.DONE
    run = make(whole, tmp_path)
    code, said = ask("explain", *kept, "--baseline", "main", run, "--gate", "3%")
    assert code == ExitCode.UNREADABLE or (
        code == ExitCode.NOT_JUDGED and said["verdict"] == CANNOT and said["why_not_judged"]
    ), said


def _give_cpu(run: Path) -> None:
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**content, "environment": {"cpu": "this one"}}))


@pytest.mark.parametrize("gate", ["nosuchrow=3%", "evaluation=1ms"])
def test_of_a_row_that_is_not_there(ask: Ask, whole: Path, gate: str) -> None:
    assert ask("explain", whole, whole, "--gate", gate)[0] == ExitCode.NOT_JUDGED


def test_of_who_waits_where_a_rank_is_missing(ask: Ask, whole: Path, tmp_path: Path) -> None:
    """The other ranks' times stand, and it is said whose they are; nobody is accused."""
    run = ALONE["a rank without files"](whole, tmp_path)
    _, said = ask("report", run)
    assert "no files of 1 of 2 ranks" in said["data_quality"]
    assert said["exchange"] is None or said["exchange"]["late_rank"] is None
    _, compared = ask("explain", whole, run)
    assert "run: 1 of 2 ranks left no steps; the rows are about the others" in compared["caveats"]
    assert not [found for found in compared["causes"] if found["kind"] == "late_rank"]


def test_the_whole_run_is_judged(ask: Ask, whole: Path) -> None:
    """Else all of the above would say nothing."""
    assert ask("report", whole)[1]["verdict"] == "measured"
    code, said = ask("explain", whole, whole, "--gate", "3%")
    assert (code, said["verdict"]) == (ExitCode.DONE, "neutral")
