"""Score predictions of settings: ranks, workers, batch sizes and DALI on a reference system.

Runs that are missing in the working folder are recorded first, which takes a quiet machine and some
minutes; it may be interrupted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from whatif_cases import Scored, job_of, newest_run, summary, table

from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job
from profkit.explain.predict.prediction import BATCH, DALI, RANKS, WORKERS, Question

USUAL = ("resnet50", "--image-size=32", "--steps=60", "--warmup=8", "--hang-after=0")

RUNS = {
    "1 rank": ("--batch-size=8", "--workers=0"),
    "2 ranks": ("--batch-size=8", "--workers=0", "--ranks=2"),
    "4 ranks": ("--batch-size=8", "--workers=0", "--ranks=4"),
    "0 workers": ("--batch-size=16", "--workers=0"),
    "1 worker": ("--batch-size=16", "--workers=1"),
    "2 workers": ("--batch-size=16", "--workers=2"),
    "batch 8": ("--batch-size=8", "--workers=1"),
    "batch 16": ("--batch-size=16", "--workers=1"),
    "batch 32": ("--batch-size=32", "--workers=1"),
    "DALI off": ("--batch-size=32", "--workers=2"),
    "DALI on": ("--batch-size=32", "--workers=2", "--dali"),
}

ASKED = (
    ("1 rank", "", RANKS, 2, "2 ranks"),
    ("2 ranks", "", RANKS, 4, "4 ranks"),
    ("2 ranks", "1 rank", RANKS, 4, "4 ranks"),
    ("0 workers", "", WORKERS, 1, "1 worker"),
    ("0 workers", "", WORKERS, 2, "2 workers"),
    ("1 worker", "", WORKERS, 2, "2 workers"),
    ("1 worker", "", WORKERS, 0, "0 workers"),
    ("2 workers", "", WORKERS, 1, "1 worker"),
    ("batch 8", "", BATCH, 16, "batch 16"),
    ("batch 16", "", BATCH, 32, "batch 32"),
    ("batch 16", "batch 8", BATCH, 32, "batch 32"),
    ("batch 32", "batch 16", BATCH, 8, "batch 8"),
    ("DALI off", "", DALI, 1, "DALI on"),
)
"""The run that is asked, the one that it may rest on as well, the question, and the truth."""


def settings(work: Path) -> str:
    """Record the missing runs, and return the section."""
    failed = record_missing(work)
    scored = list(_score(work))
    words = ""
    if failed:
        words = f" These could not be recorded here: {', '.join(failed)}."
    return (
        f"ResNet50 on the processors of one machine, `profkit trace {' '.join(USUAL)}`. Each "
        "answer is compared with a run in which the setting was changed; where two runs are "
        f"named, the second is `--base`.{words}\n\n{summary(scored)}\n{table(scored)}"
    )


def record_missing(work: Path) -> list[str]:
    """Record what is missing; return the names of the runs that failed."""
    failed = []
    for name, options in RUNS.items():
        folder = _folder(work, name)
        if not newest_run(folder):
            command = [sys.executable, "-m", "profkit", "trace", *USUAL, *options]
            done = subprocess.run([*command, "-o", str(folder)], capture_output=True, check=False)
            if done.returncode or not newest_run(folder):
                failed.append(name)
    return failed


def _score(work: Path) -> Iterator[Scored]:
    jobs: dict[str, Job] = {}
    for name in RUNS:
        run = newest_run(_folder(work, name))
        if run is not None:
            jobs[name] = job_of(run)
    for asked, base, kind, value, truth in ASKED:
        if {asked, truth} <= jobs.keys() and (not base or base in jobs):
            answer = ask(jobs[asked], Question(kind, float(value)), jobs.get(base))
            label = f"{asked} and {base}" if base else asked
            yield Scored(label, answer, jobs[truth].now_ns.value)


def _folder(work: Path, name: str) -> Path:
    return work / "settings" / name.replace(" ", "-")
