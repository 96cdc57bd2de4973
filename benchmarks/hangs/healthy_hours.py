"""Run healthy jobs with long parts under a short limit, and count profkit's alarms.

python benchmarks/hangs/healthy_hours.py run --minutes 60   run jobs for an hour, one after another
python benchmarks/hangs/healthy_hours.py score [--write]    show what they gave

Each job (`healthy_job.py`) is recorded by `profkit run --hang-after 8`, has two ranks, and differs
from the others. The parts that take long are 0.3 to 4 limits long. Every alarm is a false one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # results.py

import results

HERE = Path(__file__).parent
LIMIT_S = 8.0
"""On a full machine, a step of 2 s once took 4.6 s."""

LONGEST_JOB_S = 2_400


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-healthy-hours"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.what == "run":
        deadline = time.monotonic() + args.minutes * 60
        for seed in itertools.count():
            if time.monotonic() > deadline:
                break
            if not (args.work / str(seed) / "result.json").exists():
                found = run_one(args.work, seed)
                (args.work / str(seed) / "result.json").write_text(json.dumps(found))
    found = score(args.work)
    print(json.dumps(found, indent=1))
    if args.write:
        results.write("healthy_hours", found)


def run_one(work: Path, seed: int) -> dict[str, Any]:
    """Run one job under `profkit run`, and return what profkit said of it."""
    folder = work / str(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "profkit", "run", "--collect", "none"]
    command += ["--hang-after", str(LIMIT_S), "-o", str(folder / "runs"), "--", sys.executable]
    command += [str(HERE / "hang_launch.py"), "2", str(HERE / "healthy_job.py")]
    command += [str(seed), str(LIMIT_S), str(folder)]
    with open(folder / "said", "w") as said:
        try:
            done = subprocess.run(
                command, stdout=said, stderr=said, check=False, timeout=LONGEST_JOB_S
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    return {"seed": seed, "code": code, **read_run(folder)}


def read_run(folder: Path) -> dict[str, Any]:
    """Return how long a job trained, and its verdicts."""
    import pyarrow.compute as pc

    from profkit.hangs.account import read_account
    from profkit.hangs.incidents import SEEN, read_events
    from profkit.trace.reader import Trace, find_runs

    (run,) = find_runs(folder / "runs")
    steps = Trace.open(run).steps
    ends_ns, starts_ns = pc.max(steps["end_ns"]).as_py(), pc.min(steps["start_ns"]).as_py()
    trained_s = ((ends_ns or 0) - (starts_ns or 0)) / 1e9
    alarms, notices = [], 0
    for event in read_events(run):
        if event["event"] == SEEN and event["verdict"]["level"] == "alarm":
            alarms.append(f"{event['verdict']['class']}: {event['verdict']['text']}")
        notices += event["event"] == SEEN and event["verdict"]["level"] == "notice"
    return {
        "trained_s": round(trained_s, 1),
        "steps": steps.num_rows,
        "alarms": alarms,
        "notices": notices,
        "why": read_account(run).state,
    }


def score(work: Path) -> dict[str, Any]:
    """Return the hours, the alarms and a row per job; jobs that failed do not count."""
    jobs = [json.loads(path.read_text()) for path in sorted(work.glob("*/result.json"))]
    whole = [job for job in jobs if job["code"] == 0]
    return {
        "jobs": len(whole),
        "failed": len(jobs) - len(whole),
        "hours_of_training": sum(job["trained_s"] for job in whole) / 3600,
        "alarms": sum(len(job["alarms"]) for job in whole),
        "notices": sum(job["notices"] for job in whole),
        "did_not_hang": sum(job["why"] == "did not hang" for job in whole),
        "rows": jobs,
    }


if __name__ == "__main__":
    main()
