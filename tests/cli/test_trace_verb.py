"""`profkit trace` as a user runs it: complete runs, killed runs, and a full disk.

The processes of a test run in parallel, because most of their time goes into importing torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from profkit.cli import main
from profkit.errors import ExitCode
from profkit.trace import Trace
from profkit.vocab import TABLES
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.imagenet import GeneratedSet
from tests.scribe.finding import scribe_of

STEPS = 24
SMALL = ("--image-size", "32", "--batch-size", "2", "--workers", "1")
PHASES = {"data", "h2d", "forward", "backward", "optimizer"}
PATIENCE_S = 300
LOSSES = re.compile(
    rf"^{STEPS} steps, loss (\S+) at the first and (\S+) at the last$", re.MULTILINE
)

Screen = Callable[..., "tuple[int, str, str]"]


@dataclass(frozen=True)
class Ended:
    """A `profkit trace` that has ended: its folder, exit code and what it said."""

    folder: Path
    code: int
    out: str
    err: str

    @property
    def run(self) -> Path:
        return only_run(self.folder)

    @property
    def manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.run / "run.json").read_text())
        return content

    @property
    def losses(self) -> tuple[str, ...]:
        """The first and the last loss, digit for digit as they were printed."""
        found = LOSSES.search(self.err)
        assert found, self.err
        return found.groups()


def only_run(folder: Path) -> Path:
    (run,) = (folder / "traces").iterdir()
    return run


class Started:
    """A `profkit trace` under way, in a folder and a process group of its own."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self.folder = folder
        folder.mkdir()
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PROFKIT_") or name == "PROFKIT_CACHE"
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "profkit", "trace", "resnet50", *SMALL, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**clean, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder), **environment},
            start_new_session=True,
        )

    def wait_for_rows(self) -> Path:
        """The run's folder, once rows of steps and spans are on disk."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for spans in self.folder.glob("traces/*/r00000/spans.arrows"):
                if Trace.open(only_run(self.folder)).steps.num_rows and spans.stat().st_size:
                    return only_run(self.folder)
            time.sleep(0.05)
        raise AssertionError(f"no steps were recorded: {self.end()}")

    def end(self) -> Ended:
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        finally:
            self.clean_up()
        return Ended(self.folder, self.process.returncode, out, err)

    def clean_up(self) -> None:
        """Wait for the loader workers of a killed process, which hold its pipes for seconds."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs that already holds the generated data, so that no process has to wait."""
    generate(GeneratedSet())
    return tmp_path_factory.mktemp("trace")


@dataclass(frozen=True)
class Trained:
    """Runs that trained to their end with the same settings."""

    traced: Ended
    switched_off: Ended
    disk_full: Ended


@pytest.fixture(scope="module")
def trained(folder: Path) -> Iterator[Trained]:
    steps = ("--steps", str(STEPS))
    started = [
        Started(folder / "traced", *steps, "--json"),
        Started(folder / "off", *steps, PROFKIT_DISABLE="1"),
    ]
    try:
        full = _train_until_the_disk_is_full(folder, started, *steps)
        traced, switched_off = (one.end() for one in started[:2])
        yield Trained(traced, switched_off, full)
    finally:
        for one in started:
            one.clean_up()


def _train_until_the_disk_is_full(folder: Path, started: list[Started], *options: str) -> Ended:
    """Limit the size of the process's files from some step on.

    If the limit came after the last step, the training is tried again.
    """
    for attempt in range(3):
        one = Started(
            folder / f"full{attempt}", *options, PYTHONDONTWRITEBYTECODE="1"
        )  # Python would leave halves of bytecode files for others
        started.append(one)
        run = one.wait_for_rows()
        size = (run / "r00000" / "spans.arrows").stat().st_size
        for pid in (one.process.pid, scribe_of(run)):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
        ended = one.end()
        if Trace.open(ended.run).steps.num_rows < STEPS:
            break
    return ended


@dataclass(frozen=True)
class Interrupted:
    """Runs that were ended while they trained, each by its signal."""

    by_sigint: Ended
    by_sigterm: Ended
    by_sigkill: Ended


@pytest.fixture(scope="module")
def interrupted(folder: Path) -> Iterator[Interrupted]:
    ways: dict[str, Callable[[int], None]] = {
        "int": lambda pid: os.killpg(
            pid, signal.SIGINT
        ),  # as Ctrl-C reaches all processes of a terminal's job
        "term": lambda pid: os.kill(pid, signal.SIGTERM),
        "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    }
    started = {
        way: Started(folder / way, "--steps", "100000", "--seed", "1" if way == "int" else "0")
        for way in ways
    }
    try:
        for way, one in started.items():
            one.wait_for_rows()
            ways[way](one.process.pid)
        for one in started.values():
            one.process.wait(PATIENCE_S)
            one.clean_up()
        yield Interrupted(*(one.end() for one in started.values()))
    finally:
        for one in started.values():
            one.clean_up()


@pytest.fixture
def screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Call the command line in this process; return exit code, stdout and stderr."""

    def call(ended: Ended, verb: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.chdir(ended.folder)
        code = main([verb, str(ended.run.relative_to(ended.folder)), *options])
        return code, *capsys.readouterr()

    return call


def test_every_step_has_its_phases(trained: Trained) -> None:
    trace = Trace.open(trained.traced.run)
    steps = trace.steps.to_pylist()
    assert [row["step"] for row in steps] == list(range(STEPS))
    phases = {
        row["step"]: {
            span["phase"] for span in trace.spans.to_pylist() if span["step"] == row["step"]
        }
        for row in steps
    }
    measured = [row["step"] for row in steps if row["instrumented"]]
    assert len(measured) > STEPS // 2
    for step in measured:
        assert phases[step] >= PHASES
    assert all(row["sample_count"] == 2 for row in steps)
    assert all(row["epoch"] == 0 for row in steps)


def test_steps_tile_the_loop_and_phases_lie_in_them(trained: Trained) -> None:
    trace = Trace.open(trained.traced.run)
    steps = trace.steps.to_pylist()
    assert [row["start_ns"] for row in steps[1:]] == [row["end_ns"] for row in steps[:-1]]
    for span in trace.spans.to_pylist():
        if span["step"] < STEPS and not span["depth"]:  # inside of a loader, batches are made ahead
            assert (
                steps[span["step"]]["start_ns"]
                <= span["start_ns"]
                <= span["end_ns"]
                <= steps[span["step"]]["end_ns"]
            )


def test_a_whole_run_says_so(trained: Trained, screen: Screen) -> None:
    traced = trained.traced
    assert traced.code == ExitCode.DONE, traced.err
    assert (traced.manifest["state"], traced.manifest["why"]) == ("complete", "")
    code, out, _ = screen(traced, "verify", "--json")
    found = json.loads(out)
    assert (code, found["state"], found["rows_lost"], found["rows_dropped"], found["reasons"]) == (
        0,
        "complete",
        0,
        0,
        [],
    )


def test_data_goes_to_stdout_and_narration_to_stderr(trained: Trained) -> None:
    figures = json.loads(trained.traced.out)
    assert figures["steps_seen"] == STEPS
    assert {part["phase"] for part in figures["phases"]} >= PHASES | {"unknown"}
    for word in ("ResNet50", "training ...", f"{STEPS} steps, loss"):
        assert word in trained.traced.err
        assert word not in trained.traced.out


def test_the_report_prints_the_figures_again(trained: Trained, screen: Screen) -> None:
    assert screen(trained.traced, "report", "--json") == (0, trained.traced.out, "")
    full = trained.disk_full
    said = [line for line in full.out.splitlines() if not line.startswith("  next ")]
    assert screen(full, "report")[1].splitlines() == said


def test_the_losses_printed_are_the_losses_recorded(trained: Trained) -> None:
    recorded = Trace.open(trained.traced.run).steps["loss"].to_pylist()
    assert trained.traced.losses == (repr(recorded[0]), repr(recorded[-1]))
    figures = json.loads(trained.traced.out)
    assert (figures["first_loss"], figures["last_loss"]) == (recorded[0], recorded[-1])


def test_switched_off_there_is_no_run_and_the_losses_are_the_same(trained: Trained) -> None:
    off = trained.switched_off
    assert (off.code, off.out) == (ExitCode.DONE, "")
    assert not (off.folder / "traces").exists()
    assert off.losses == trained.traced.losses


def test_a_disk_that_fills_up_costs_the_trace_and_not_the_training(
    trained: Trained, screen: Screen
) -> None:
    full = trained.disk_full
    assert full.code == ExitCode.DONE, full.err
    assert full.losses == trained.switched_off.losses
    assert "Traceback" not in full.err
    assert full.manifest["state"] == "aborted"
    why = str(full.manifest["why"])
    reason, _, table = why.partition(" while writing ")
    assert reason == "File too large"
    assert table in TABLES  # the one whose file met the limit first
    assert f"the run was aborted: {why}" in full.out
    trace = Trace.open(full.run)
    assert 0 < trace.steps.num_rows < STEPS
    assert trace.spans.num_rows
    assert trace.problems == ()
    code, out, _ = screen(full, "verify", "--json")
    found = json.loads(out)
    assert (code, found["state"], found["rows_lost"]) == (0, "ended early", 0)
    assert found["rows_dropped"] > 0


def test_the_same_seed_gives_the_same_losses_and_another_one_others(
    trained: Trained, interrupted: Interrupted
) -> None:
    def recorded(ended: Ended) -> list[float]:
        losses: list[float] = Trace.open(ended.run).steps["loss"].to_pylist()
        return losses

    whole, same, other = (
        recorded(trained.traced),
        recorded(interrupted.by_sigterm),
        recorded(interrupted.by_sigint),
    )
    common = min(len(whole), len(same))
    assert common > 0
    assert whole[:common] == same[:common]
    assert whole[0] != other[0]


@pytest.mark.alone
@pytest.mark.parametrize(
    ("way", "code", "why"),
    [("by_sigint", 130, "interrupted"), ("by_sigterm", 143, "Terminated: SIGTERM")],
)
def test_a_run_that_is_interrupted_is_closed_and_marked(
    interrupted: Interrupted, screen: Screen, way: str, code: int, why: str
) -> None:
    ended: Ended = getattr(interrupted, way)
    assert ended.code == code
    assert (ended.manifest["state"], ended.manifest["why"]) == ("aborted", why)
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert (
        f"stopped early; what was recorded is in {ended.run.relative_to(ended.folder)}" in ended.err
    )
    report_code, text, _ = screen(ended, "report")
    assert report_code == ExitCode.DONE
    assert f"the run was aborted: {why}" in " ".join(text.split())
    verify_code, out, _ = screen(ended, "verify", "--json")
    found = json.loads(out)
    assert (verify_code, found["state"], found["rows_lost"], found["rows_dropped"]) == (
        0,
        "ended early",
        0,
        0,
    )


def test_a_run_that_was_killed_can_be_read_and_is_told_from_a_whole_one(
    interrupted: Interrupted, screen: Screen
) -> None:
    killed = interrupted.by_sigkill
    assert killed.code == -signal.SIGKILL
    assert Trace.open(killed.run).steps.num_rows > 0
    code, out, _ = screen(killed, "verify", "--json")
    found = json.loads(out)
    assert (code, found["state"], found["rows_lost"]) == (0, "ended early", 0)
    assert "killed" in found["reasons"][0]
    report_code, text, _ = screen(killed, "report")
    assert report_code == ExitCode.DONE
    assert "the run has no end: it still runs, or it was killed" in " ".join(text.split())


def test_a_disk_that_is_full_from_the_start_is_one_line_that_helps(tmp_path: Path) -> None:
    """Not even the manifest fits: nothing was trained yet, so this is an error."""
    script = """if True:
        import resource, sys
        from pathlib import Path
        from profkit.errors import ProfkitError
        from profkit.run.run_folder import make_run
        from profkit.trace import RunManifest
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            make_run(Path(sys.argv[1]), "run", RunManifest(workload="resnet50"))
            print("trained")
        except ProfkitError as error:
            sys.exit(f"profkit: {error}")
    """
    command = [sys.executable, "-B", "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.UNFINISHED, "")
    (line,) = done.stderr.splitlines()
    assert "cannot be written (File too large); choose another place with --output" in line
