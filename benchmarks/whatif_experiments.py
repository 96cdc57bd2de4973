"""Score experiments: a phase that is measured twice as fast, and the job in which it is so.

Each job has a planted cost in one phase; its twin has half of it. The twin runs before and after
the job, because the speed of a machine drifts. Runs that are there already are not repeated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from whatif_cases import Scored, job_of, newest_run, summary, table

from profkit.analysis.experiments import cost_share
from profkit.explain.predict.ask import ask
from profkit.explain.predict.faster import simulate
from profkit.explain.predict.prediction import FASTER, Question
from profkit.text import percent
from profkit.vocab import EXPERIMENT_FACTOR, Phase

SCRIPT = Path(__file__).parent / "experiment_job.py"
STEPS, TWIN_STEPS = 4_020, 500

DATA, FORWARD, BACKWARD = Phase.DATA.value, Phase.FORWARD.value, Phase.BACKWARD.value
EXCHANGE, OPTIMIZER = Phase.ALLREDUCE.value, Phase.OPTIMIZER.value


class Planted(NamedTuple):
    """A job: the phase that is asked about, the option that costs it, and the others."""

    phase: str
    cost: str
    value: float
    others: Mapping[str, float | str]
    ranks: int = 1

    def command(self, steps: int, *, faster: bool) -> list[str]:
        """Return the command of the job, or of its twin."""
        value = self.value / EXPERIMENT_FACTOR if faster else self.value
        given = {"steps": steps, "ranks": self.ranks, self.cost: f"{value:g}"}
        words = [sys.executable]
        if self.ranks > 1:
            words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            words.append(str(self.ranks))
        words.append(str(SCRIPT))
        for name, option in {**self.others, **given}.items():
            words.append(f"--{name}={option}" if option != "" else f"--{name}")
        return words


PADDLE = {"framework": "paddle"}

JOBS: Mapping[str, Planted] = {
    "storage": Planted(DATA, "data-sleep", 6, {"forward": 2, "backward": 1}),
    "decoding": Planted(DATA, "data-work", 6, {"forward": 2, "backward": 1}),
    "storage, 2 workers": Planted(
        DATA, "data-sleep", 16, {"workers": 2, "forward": 2, "backward": 2}
    ),
    "decoding, 1 worker": Planted(
        DATA, "data-work", 6, {"workers": 1, "forward": 2, "backward": 2}
    ),
    "forward, 1 worker": Planted(FORWARD, "forward", 6, {"workers": 1, "data-work": 4}),
    "backward": Planted(BACKWARD, "backward", 6, {"forward": 2, "data-work": 1}),
    "optimizer": Planted(OPTIMIZER, "optimizer", 4, {"forward": 2, "backward": 2}),
    "forward, 2 ranks": Planted(FORWARD, "forward", 6, {"backward": 2, "ddp": ""}, 2),
    "forward, 2 ranks, 1 late": Planted(
        FORWARD, "forward", 6, {"late": 2, "backward": 2, "ddp": ""}, 2
    ),
    "exchange, 2 ranks": Planted(EXCHANGE, "exchanges", 4, {"forward": 2, "backward": 1}, 2),
    "decoding, Paddle": Planted(DATA, "data-work", 4, {**PADDLE, "forward": 3}),
    "forward, Paddle": Planted(FORWARD, "forward", 6, {**PADDLE, "data-sleep": 2}),
}


def experiments(work: Path, only: Sequence[str] = ()) -> str:
    """Record the missing runs, score them, and return the section."""
    scored, simulated, costs = [], list[float](), list[float]()
    failed = []
    for name, job in JOBS.items():
        if only and name not in only:
            continue
        runs = record(job, work / "experiments" / name.replace(", ", "-").replace(" ", "-"))
        if runs is None:
            failed.append(name)
            continue
        recorded, *twins = map(job_of, runs)
        truth = float(np.mean([twin.now_ns.value for twin in twins]))
        question = Question(FASTER, float(EXPERIMENT_FACTOR), cause=job.phase)
        scored.append(Scored(name, ask(recorded, question), truth))
        replayed = simulate(recorded, question).step_ns
        if replayed is not None:
            simulated.append(abs(replayed.value / truth - 1))
        costs.append(cost_share(recorded.evidence.trace, recorded.evidence.used))
    words = ""
    if failed:
        words = f" These could not be recorded here: {', '.join(failed)}."
    return (
        f"Jobs with a planted cost, `profkit run --experiment`, {STEPS:,} steps each. The truth is "
        "the mean of two runs with half of that cost, one before and one after the job."
        f"{words}\n\n{summary(scored)}\n"
        f"The blocks cost {percent(float(np.median(costs)))} of a run in the median, at most "
        f"{percent(max(costs))}. The simulated answers have a median error of "
        f"{percent(float(np.median(simulated)))}.\n\n{table(scored)}"
    )


def record(job: Planted, folder: Path) -> list[Path] | None:
    """Record a job between two runs of its twin; return all, or `None` if one failed."""
    runs = dict[str, Path | None]()
    for name in ("twin-before", "job", "twin-after"):
        runs[name] = newest_run(folder / name) or _record(job, folder / name, faster=name != "job")
    found = [runs["job"], runs["twin-before"], runs["twin-after"]]
    complete = [run for run in found if run is not None]
    return complete if len(complete) == len(found) else None


def _record(job: Planted, folder: Path, *, faster: bool) -> Path | None:
    words = [sys.executable, "-m", "profkit", "run", "--hang-after", "0", "-o", str(folder)]
    if not faster:
        words += ["--experiment", job.phase]
    command = job.command(TWIN_STEPS if faster else STEPS, faster=faster)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(
        [*words, "--", *command], env={**os.environ, **threads}, capture_output=True, check=False
    )
    return newest_run(folder)
