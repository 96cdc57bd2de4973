"""Each trainer's job, run with a callback of its own and under `profkit run`, in parallel."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOBS = Path(__file__).parent / "jobs"
PROFKIT_RUN = (sys.executable, "-m", "profkit", "run", "--")


@dataclass(frozen=True)
class Training:
    """One training of a job: what the trainer says of it, and its part of the trace, if any."""

    callbacks: int
    accumulate: int
    losses: list[float]
    step_count: int
    steps: pa.Table
    spans: pa.Table

    @property
    def measured(self) -> list[int]:
        return list(self.steps.filter(self.steps["instrumented"])["step"].to_pylist())

    def phases(self, step: int) -> set[str]:
        return set(self.spans.filter(pc.equal(self.spans["step"], step))["phase"].to_pylist())


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a job, and its runs."""

    code: int
    out: str
    err: str
    runs: tuple[Path, ...]

    @functools.cached_property
    def trace(self) -> Trace:
        assert len(self.runs) == 1, self.err
        return Trace.open(self.runs[0])

    @functools.cached_property
    def told(self) -> list[dict[str, Any]]:
        return [
            json.loads(line.partition(": ")[2])
            for line in self.out.splitlines()
            if line.startswith("training: ")
        ]

    def trainings(self, *, is_recorded: bool) -> Iterator[Training]:
        """The trainings in order, each with as many steps as its trainer has counted."""
        first = 0
        for told in self.told:
            count = told["steps"] if is_recorded or told["callbacks"] else 0
            steps = self.trace.steps.slice(first, count)
            first += count
            spans = self.trace.spans.filter(pc.is_in(self.trace.spans["step"], steps["step"]))
            yield Training(
                told["callbacks"], told["accumulate"], told["losses"], told["steps"], steps, spans
            )


@dataclass(frozen=True)
class Started:
    """A job that is running."""

    process: subprocess.Popen[str]
    folder: Path

    def wait(self) -> Ended:
        out, err = self.process.communicate(timeout=240)
        return Ended(self.process.returncode, out, err, tuple(find_runs(self.folder / "traces")))


def start(
    folder: Path, *words: object, is_recorded: bool, env: Mapping[str, str] | None = None
) -> Started:
    """Start a job, under `profkit run` or as it is."""
    folder.mkdir(parents=True)
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PROFKIT_")
    }
    own = {
        "OMP_NUM_THREADS": "1",
        "PROFKIT_OUTPUT": str(folder / "traces"),
        "PYTHONPATH": str(JOBS.parents[2]),
        **(env or {}),
    }
    command = [*(PROFKIT_RUN if is_recorded else ()), sys.executable, *map(str, words)]
    return Started(
        subprocess.Popen(
            command,
            cwd=folder,
            env=inherited | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ),
        folder,
    )


@dataclass(frozen=True)
class Job:
    """A job's script and words, and its samples per step, by accumulated batches."""

    script: str
    words: tuple[str, ...]
    words_under_run: tuple[str, ...]
    samples: Mapping[int, list[int]]


TRAINERS = {
    "lightning": Job(
        "train_lightning.py",
        ("lightning.pytorch",),
        ("pytorch_lightning",),
        {1: [*[4] * 10, 2] * 2, 2: [*[8] * 5, 2] * 2},
    ),
    "huggingface": Job("train_huggingface.py", (), (), {1: [*[4] * 7, 2] * 2, 2: [8, 8, 8, 6] * 2}),
    "paddle": Job("train_paddle.py", (), (), {1: [*[4] * 7, 2] * 2, 2: [8, 8, 8, 6] * 2}),
}


@dataclass(frozen=True)
class Runs:
    """Both runs of a job: with several numbers of callbacks, bare and under `profkit run`."""

    job: Job
    alone: Ended
    under_run: Ended

    @functools.cached_property
    def bare(self) -> list[dict[str, Any]]:
        return self.alone.told[:2]

    @functools.cached_property
    def unedited(self) -> list[Training]:
        return [
            training
            for training in self.under_run.trainings(is_recorded=True)
            if training.callbacks == 0
        ]

    @functools.cached_property
    def told(self) -> list[Training]:
        """The trainings with callbacks, of both runs."""
        both = [
            *self.alone.trainings(is_recorded=False),
            *self.under_run.trainings(is_recorded=True),
        ]
        return [training for training in both if training.callbacks > 0]


FIRST, *OTHERS = TRAINERS


@pytest.fixture(
    scope="session",
    params=[FIRST, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)],
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    job, folder = TRAINERS[request.param], tmp_path_factory.mktemp(request.param)
    alone = start(folder / "alone", JOBS / job.script, *job.words, 0, 1, -1, is_recorded=False)
    under_run = start(
        folder / "under_run", JOBS / job.script, *job.words_under_run, 0, 1, 2, is_recorded=True
    )
    return Runs(job, alone.wait(), under_run.wait())
