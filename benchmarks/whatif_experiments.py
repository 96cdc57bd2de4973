"""Score experiments: a phase that is measured twice as fast, and the job in which it is so.

Each job has a planted cost in one phase. In every other part of its run that cost is halved: these
parts are the faster twin, on the same machine in the same minutes. The answer is from the other
parts alone. Runs that are there already are not repeated.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from experiment_job import PART
from whatif_cases import Scored, newest_run, summary, table

from profkit.analysis.estimate import Ints
from profkit.analysis.experiments import cost_share
from profkit.analysis.selection import steady_steps
from profkit.explain.predict.ask import ask
from profkit.explain.predict.faster import simulate
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.prediction import FASTER, Question
from profkit.text import percent
from profkit.trace import Trace
from profkit.trace.rank import RankTrace
from profkit.trace.window import BY_STEP, WindowTrace
from profkit.vocab import EXPERIMENT_FACTOR, EXPERIMENTS, Phase

SCRIPT = Path(__file__).parent / "experiment_job.py"
PARTS = 30
SETTLES = 20
"""So many steps at the beginning of a part may have what the part before it left."""

DATA, FORWARD, BACKWARD = Phase.DATA.value, Phase.FORWARD.value, Phase.BACKWARD.value
EXCHANGE, OPTIMIZER = Phase.ALLREDUCE.value, Phase.OPTIMIZER.value


class Planted(NamedTuple):
    """A job: the phase that is asked about, the option that costs it, and all options."""

    phase: str
    cost: str
    options: Mapping[str, float | str]

    def command(self) -> list[str]:
        words, ranks = [sys.executable], self.options.get("ranks")
        if ranks:
            launcher = ["-m", "torch.distributed.run", "--standalone"]
            words += [*launcher, "--nproc-per-node", str(ranks)]
        words += [str(SCRIPT), f"--steps={PARTS * PART}", f"--halved={self.cost}"]
        for name, option in self.options.items():
            words.append(f"--{name}={option}" if option != "" else f"--{name}")
        return words


PADDLE: Mapping[str, float | str] = {"framework": "paddle", "workers": 1}
TWO: Mapping[str, float | str] = {"ranks": 2, "ddp": ""}

JOBS: Mapping[str, Planted] = {
    "storage": Planted(DATA, "data_sleep", {"data-sleep": 6, "forward": 2, "backward": 1}),
    "decoding": Planted(DATA, "data_work", {"data-work": 6, "forward": 2, "backward": 1}),
    "storage, 2 workers": Planted(
        DATA, "data_sleep", {"data-sleep": 16, "workers": 2, "forward": 2, "backward": 1}
    ),
    "decoding, 1 worker": Planted(
        DATA, "data_work", {"data-work": 6, "workers": 1, "forward": 2, "backward": 2}
    ),
    "forward, 1 worker": Planted(FORWARD, "forward", {"forward": 6, "workers": 1, "data-work": 4}),
    "backward": Planted(BACKWARD, "backward", {"backward": 5, "forward": 2, "data-work": 1}),
    "optimizer": Planted(OPTIMIZER, "optimizer", {"optimizer": 4, "forward": 2, "backward": 2}),
    "forward, 2 ranks": Planted(FORWARD, "forward", {"forward": 5, "backward": 2, **TWO}),
    "forward, 2 ranks, 1 late": Planted(
        FORWARD, "forward", {"forward": 5, "late": 2, "backward": 1, **TWO}
    ),
    "exchange, 2 ranks": Planted(
        EXCHANGE, "exchanges", {"exchanges": 2, "forward": 2, "backward": 1, "ranks": 2}
    ),
    "decoding, Paddle": Planted(DATA, "data_work", {**PADDLE, "data-work": 6, "forward": 3}),
    "forward, Paddle": Planted(FORWARD, "forward", {**PADDLE, "forward": 5, "data-sleep": 2}),
}


def experiments(work: Path) -> str:
    """Record the missing runs, score them, and return the section."""
    scored, simulated, costs, failed = [], list[float](), list[float](), []
    for name, job in JOBS.items():
        folder = work / "experiments" / name.replace(", ", "-").replace(" ", "-")
        run = newest_run(folder) or record(job, folder)
        if run is None:
            failed.append(name)
            continue
        trace = Trace.open(run)
        recorded, truth = read_part(trace, 0), read_part(trace, 1).now_ns.value
        question = Question(FASTER, float(EXPERIMENT_FACTOR), cause=job.phase)
        scored.append(Scored(name, ask(recorded, question), truth))
        replayed = simulate(recorded, question).step_ns
        if replayed is not None:
            simulated.append(abs(replayed.value / truth - 1))
        costs.append(cost_share(trace, steady_steps(trace).steps))
    errors = [abs(each.error) for each in scored if each.error is not None]
    words = ""
    if failed:
        words = f" These could not be recorded here: {', '.join(failed)}."
    return (
        f"{len(scored)} jobs with a planted cost, `profkit run --experiment PHASE`, "
        f"{PARTS * PART:,} steps each. In every other {PART} steps the cost is halved: these are "
        f"the truth, and the answer is from the others alone.{words}\n\n{summary(scored)}\n"
        f"The blocks cost {percent(float(np.median(costs)))} of a run in the median, at most "
        f"{percent(max(costs))}. With the inconclusive answers, the median error is "
        f"{percent(float(np.median(errors)))}; that of a replay without the blocks is "
        f"{percent(float(np.median(simulated)))}.\n\n{table(scored)}"
    )


def record(job: Planted, folder: Path) -> Path | None:
    words = [sys.executable, "-m", "profkit", "run", "--hang-after", "0", "-o", str(folder)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [*words, "--experiment", job.phase, "--", *job.command()]
    subprocess.run(command, env={**os.environ, **threads}, capture_output=True, check=False)
    return newest_run(folder)


class _RankPart(RankTrace):
    """The rows of a rank that are about some steps."""

    def __init__(self, whole: RankTrace, steps: Ints) -> None:
        super().__init__(whole.folder, whole.rank)
        self.contents = whole.contents
        self._steps = pa.array(steps)

    def table(self, table: str) -> pa.Table:
        rows = super().table(table)
        if table in BY_STEP:
            return rows.filter(pc.is_in(rows["step"], self._steps))
        if table != "samples":
            return rows
        mine = pc.is_in(rows["value"], self._steps.cast(pa.float64()))
        return rows.filter(pc.or_(mine, pc.not_equal(rows["source"], EXPERIMENTS)))


def read_part(trace: Trace, which: int) -> Job:
    """Return the steps of a run in which the cost is whole (0) or halved (1), as a run."""
    steps = np.arange(int(pc.max(trace.steps["step"]).as_py()) + 1)
    settled = (steps // PART % 2 == which) & (steps % PART >= SETTLES)
    ranks = tuple(_RankPart(rank, steps[settled]) for rank in trace.ranks)
    label = f"{trace.name}, {'half of the cost' if which else 'the job'}"
    return read_job(WindowTrace(trace.path, trace.manifest, ranks, label, 0))
