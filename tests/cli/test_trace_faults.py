"""Faults in a training: each has a message, an exit code, and a trace that can be read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from profkit.errors import ExitCode
from profkit.trace import Trace
from profkit.trace.reader import find_runs
from profkit.vocab import RunState
from profkit.workloads.datasets.generated import generate
from profkit.workloads.datasets.imagenet import GeneratedSet
from profkit.workloads.datasets.motions import GeneratedClips
from tests.cli.conftest import Command

PATIENCE_S = 500
TINY = ("--image-size", "32", "--batch-size", "4", "--workers", "0")
QUIET = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def whole_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    spec = GeneratedSet(classes=2, train_per_class=8, val_per_class=1, long_side=64)
    spec.write(folder, lambda done, total: None)
    return folder


@pytest.fixture
def tree(whole_tree: Path, tmp_path: Path) -> Path:
    """A small tree of one's own to damage."""
    return Path(shutil.copytree(whole_tree, tmp_path / "data"))


@dataclass(frozen=True)
class Started:
    """A training in a folder of its own, with its output in files.

    Trainings with faults run at the same time, because most of their time is imports.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    broken: Path | None = None

    def end(self) -> Faulty:
        self.process.wait(PATIENCE_S)
        return Faulty(
            self.folder,
            self.process.returncode,
            (self.folder / "stdout").read_text(),
            (self.folder / "stderr").read_text(),
            self.broken,
        )


@dataclass(frozen=True)
class Faulty:
    """The result of a training with a fault."""

    folder: Path
    returncode: int
    stdout: str
    stderr: str
    broken: Path | None

    @property
    def trace(self) -> Trace:
        return _newest(self.folder)


def _start(
    folder: Path, system: str, tree: Path, *options: str, broken: Path | None = None
) -> Started:
    command = [
        sys.executable,
        "-m",
        "profkit",
        "trace",
        system,
        "--image-size",
        "32",
        "--data",
        str(tree),
        *options,
    ]
    with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
        return Started(
            folder,
            subprocess.Popen(
                command, cwd=folder, env={**os.environ, **QUIET}, stdout=out, stderr=err
            ),
            broken,
        )


@pytest.fixture(scope="module")
def faulty(whole_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Faulty]:
    """One training for each fault."""

    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    damaged = Path(shutil.copytree(whole_tree, folder("damaged") / "data"))
    frames = _kinetics_without_frames(folder("kinetics"))
    four, two, broken = (
        ("--batch-size", "4", "--workers", "0"),
        ("--batch-size", "2", "--workers", "0", "--steps", "2"),
        _damage(damaged),
    )
    started = {
        "no number": _start(
            folder("nan"), "resnet50", whole_tree, *four, "--lr", "1e30", "--steps", "8"
        ),
        "skipped": _start(
            folder("skip"),
            "resnet50",
            damaged,
            *four,
            "--steps",
            "4",
            "--bad-samples",
            "skip",
            "--collect",
            "none",
            "--json",
            broken=broken,
        ),
        "ended": _start(
            folder("end"),
            "resnet50",
            damaged,
            "--batch-size",
            "4",
            "--workers",
            "1",
            "--steps",
            "4",
            broken=broken,
        ),
        "wrong tree": _start(folder("tree"), "resnet50", whole_tree / "train", *four),
        "missing": _start(folder("missing"), "tsm", frames, *two),
        "padded": _start(folder("pad"), "tsm", frames, *two, "--bad-samples", "pad"),
    }
    return {name: each.end() for name, each in started.items()}


def _newest(folder: Path) -> Trace:
    return Trace.open(find_runs(folder / "traces")[-1])


def _damage(tree: Path) -> Path:
    path = sorted((tree / "train").rglob("*.JPEG"))[3]
    path.write_bytes(path.read_bytes()[:200])
    return path


def _kinetics_without_frames(folder: Path) -> Path:
    tree = Path(shutil.copytree(generate(GeneratedClips()), folder / "data"))
    frames = sorted(tree.rglob("*.jpg"))
    for path in frames[5 : len(frames) // 2]:
        path.unlink()
    return tree


def test_a_loss_that_is_no_number_ends_the_run_with_step_rate_and_batch(
    faulty: dict[str, Faulty], profkit: Command
) -> None:
    done = faulty["no number"]
    assert done.returncode == ExitCode.UNFINISHED
    assert "the loss is nan at step " in done.stderr
    assert "(learning rate 1e+30, batch 4 a rank); choose a smaller --lr" in done.stderr
    assert (done.trace.manifest.state, done.trace.manifest.why[:15]) == (
        RunState.ABORTED,
        "NotFiniteError:",
    )
    assert done.trace.steps.num_rows >= 1
    assert profkit("verify", cwd=done.folder).returncode == 0


def test_a_truncated_image_is_counted_and_named(faulty: dict[str, Faulty]) -> None:
    done = faulty["skipped"]
    assert done.returncode == 0, done.stderr
    assert f"bad sample: {done.broken}: " in done.stderr
    notices = json.loads(done.stdout)["data_quality"]
    assert len(notices) == 1, notices
    assert notices[0].startswith(f"bad samples met 1 time, 1 file, the first: {done.broken}: ")


def test_a_truncated_image_ends_the_run_where_that_is_wanted(faulty: dict[str, Faulty]) -> None:
    done = faulty["ended"]
    assert done.returncode == ExitCode.UNREADABLE, done.stderr
    assert f"profkit: {done.broken}: not a whole image: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.trace.manifest.state is RunState.ABORTED


def test_a_missing_frame_is_named_with_what_can_be_done(faulty: dict[str, Faulty]) -> None:
    failed = faulty["missing"]
    assert (failed.returncode, "Traceback" in failed.stderr) == (ExitCode.UNREADABLE, False), (
        failed.stderr
    )
    assert ".jpg: " in failed.stderr
    assert "--bad-samples skip or pad" in failed.stderr
    assert faulty["padded"].returncode == 0, faulty["padded"].stderr
    assert "bad samples met" in faulty["padded"].stdout


def test_a_wrong_tree_is_told_before_anything_is_trained(faulty: dict[str, Faulty]) -> None:
    done = faulty["wrong tree"]
    assert done.returncode == ExitCode.UNREADABLE
    assert done.stderr.count("\n") <= 2
    assert (
        "no 'train' folder in it; it is the 'train' folder itself; give the folder above it"
        in done.stderr
    )


def test_a_busy_port_is_told(profkit: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        done = profkit(
            "trace",
            "resnet50",
            *TINY,
            "--ranks",
            "2",
            "--rdzv-endpoint",
            place,
            "--data",
            "synthetic",
            env=QUIET,
        )
    assert done.returncode == ExitCode.UNFINISHED
    assert (
        f"profkit: {place}: the port is in use; choose another place with --rdzv-endpoint"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--gpus", "0,1"), "'0,1' is a list of ids, and --gpus is a count; write --devices 0,1"),
        (("--gpus", "64"), "64 GPUs asked for, "),
        (("--devices", "0,0"), "'0,0' is not a list of different GPU ids"),
        (("--nnodes", "2"), "--nnodes needs --rdzv-endpoint HOST:PORT"),
        (
            ("--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "a:1"),
            "--node-rank 2 is out of range",
        ),
        (("--ranks", "2", "--rdzv-endpoint", "here"), "'here' is not HOST:PORT"),
        (("--until", "loss>3"), "--until 'loss>3' is not understood"),
        (("--max-time", "soon"), "'soon' is not a number"),
        (("--amp", "fp8"), "invalid choice: 'fp8'"),
    ],
)
def test_what_cannot_be_is_a_usage_error(
    profkit: Command, options: tuple[str, ...], complaint: str
) -> None:
    done = profkit("trace", "resnet50", *options, "--data", "synthetic", "--steps", "1", env=QUIET)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def _wait_for_steps(folder: Path, ranks: int, process: subprocess.Popen[Any]) -> list[int]:
    """The process ids of all ranks, once each has steps on disk."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        files = sorted(folder.glob("traces/*/r*/rank.json"))
        if len(files) == ranks and all(
            file.with_name("steps.arrows").exists()
            and file.with_name("steps.arrows").stat().st_size > 2000
            for file in files
        ):
            return [int(json.loads(file.read_text())["pid"]) for file in files]
        time.sleep(0.05)
    raise AssertionError(f"the ranks did not train: {process.poll()}")


def test_a_killed_rank_ends_the_others_and_leaves_its_parts(tmp_path: Path, tree: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "profkit",
        "trace",
        "resnet50",
        *TINY,
        "--ranks",
        "2",
        "--steps",
        "5000",
        "--data",
        str(tree),
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, **QUIET},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    victim = _wait_for_steps(tmp_path, 2, process)[1]
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_S)  # far less than a rank waits for another
    assert process.returncode == ExitCode.UNFINISHED, err
    assert "profkit: rank 1: it was killed by SIGKILL" in err
    trace = _newest(tmp_path)
    assert (trace.manifest.state, trace.manifest.why) == (
        RunState.ABORTED,
        "rank 1: it was killed by SIGKILL",
    )
    assert set(trace.steps["rank"].to_pylist()) == {0, 1}


def test_ranks_that_torchrun_starts_record_one_run(tmp_path: Path, tree: Path) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "profkit",
    ]
    command = [*torchrun, "trace", "resnet50", *TINY, "--steps", "3", "--data", str(tree)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = find_runs(tmp_path / "traces")
    trace = Trace.open(run)
    assert (trace.manifest.state, trace.manifest.world_size, len(trace.ranks)) == (
        RunState.COMPLETE,
        2,
        2,
    )
    assert trace.collectives.num_rows > 0
