"""Run healthy jobs with long parts under a short limit, and count profkit's alarms.

python benchmarks/hangs/healthy_hours.py run --minutes 60   run jobs for an hour, one after another
python benchmarks/hangs/healthy_hours.py score              show what all of them gave
python benchmarks/hangs/healthy_hours.py score --write      also write the two pages

Each job is recorded by `profkit run --hang-after 8`, has two ranks, and differs from the others:
see `healthy_plan.py`. What ran is added to `healthy_hours.json`. Every alarm is a false one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from page_sections import replace_section

from profkit.text import plural

HERE = Path(__file__).parent
KEPT = HERE / "healthy_hours.json"
DOCUMENT = HERE.parents[1] / "docs/hangs-accuracy.md"
ACCURACY = DOCUMENT.with_name("accuracy.md")
BEGIN, END = "<!-- healthy hours -->", "<!-- end of healthy hours -->"
RULES = 11
"""Raise it when a rule about alarms changes: what older rules did is shown apart.

A change that can only take alarms away, or that these jobs cannot reach, needs no new number.
"""

TITLE = "## Healthy jobs"
JOBS = ("torch", "paddle", "torch_epochs")
"""Who wrote the last one had not seen the rules about alarms."""

LIMIT_S = 8.0
EARLIER_LIMIT_S = 4.0
"""The limit of jobs of rules up to 10. On a full machine, a step of 2 s once took 4.6 s."""

LONGEST_JOB_S = 2_400


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-healthy"))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run together")
    parser.add_argument("--job", choices=JOBS, action="append", help="default: all of them")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.what == "run":
        run(args.work, args.minutes * 60, args.at_once, args.job or list(JOBS))
    lines = list(say(read_kept()))
    print("\n".join(lines))
    if args.write:
        DOCUMENT.write_text(with_section(DOCUMENT.read_text(), lines))
        for page in (DOCUMENT, ACCURACY):
            page.write_text(replace_section(page.read_text(), say_hours() + "\n", BEGIN, END))


def run(work: Path, seconds: float, at_once: int, kinds: list[str]) -> None:
    """Start jobs until the time is over, and wait for the last ones."""
    deadline = time.monotonic() + seconds
    seeds = itertools.count(max((job["seed"] for job in read_kept()), default=-1) + 1)
    lock = threading.Lock()

    def work_on() -> None:
        while time.monotonic() < deadline:
            with lock:
                seed = next(seeds)
            job = run_one(work, kinds[seed % len(kinds)], seed)
            with lock:  # kept at once, so that an interrupt loses nothing
                KEPT.write_text(json.dumps([*read_kept(), job], indent=1) + "\n")

    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(work_on) for _ in range(at_once)]:
            done.result()


def run_one(work: Path, kind: str, seed: int) -> dict[str, Any]:
    """Run one job under `profkit run`, and return what profkit said of it."""
    folder = work / f"{kind}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "profkit", "run", "--collect", "none"]
    command += ["--hang-after", str(LIMIT_S), "-o", str(folder / "runs"), "--", sys.executable]
    command += [str(HERE / "hang_launch.py"), "2", str(HERE / f"healthy_job_{kind}.py")]
    command += [str(seed), str(LIMIT_S), str(folder)]
    with open(folder / "said", "w") as said:
        try:
            done = subprocess.run(
                command, stdout=said, stderr=said, check=False, timeout=LONGEST_JOB_S
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    return {"framework": kind, "seed": seed, "rules": RULES, "code": code, **read_run(folder)}


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


def read_kept() -> list[dict[str, Any]]:
    return json.loads(KEPT.read_text()) if KEPT.exists() else []


def with_rules(jobs: list[dict[str, Any]], *, are_new: bool) -> list[dict[str, Any]]:
    """Return the jobs that the present rules judged, or those that older rules did."""
    return [job for job in jobs if (job.get("rules", 1) == RULES) is are_new]


def say_hours() -> str:
    """Return in a sentence how long healthy jobs trained, and the alarms."""
    kept = read_kept()
    present = _count(with_rules(kept, are_new=True))
    earlier = []
    for rules in range(RULES - 1, 0, -1):
        earlier.append(_count([job for job in kept if job.get("rules", 1) == rules]))
    beyond = sum("beyond" in job for job in with_rules(kept, are_new=True))
    left = f" {plural(beyond, 'more job')} left the plan, and counts for nothing." if beyond else ""
    return (
        f"Healthy jobs: {present}; the goal is 0.{left} With earlier rules, the latest first: "
        f"{'; '.join(earlier)}. The rules changed after these "
        "alarms, and hours count for one set of rules only."
    )


def counted(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that trained to their end, and kept to their plan.

    Fields that are written by hand say of the others why they did not: `failed` or `beyond`.
    """
    return [job for job in jobs if job["code"] == 0 and "beyond" not in job]


def _count(jobs: list[dict[str, Any]]) -> str:
    """Return how many jobs trained to their end, for how long, and their alarms."""
    whole = counted(jobs)
    hours = sum(job["trained_s"] for job in whole) / 3600
    alarms = plural(sum(len(job["alarms"]) for job in whole), "alarm")
    return f"{plural(len(whole), 'job')}, {hours:.1f} hours of training, {alarms}"


def say(jobs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the section of the page."""
    before, jobs = with_rules(jobs, are_new=False), with_rules(jobs, are_new=True)
    yield TITLE
    yield ""
    yield (
        "Jobs of two ranks that train, evaluate, write checkpoints and compile. The parts that "
        f"take long are 0.3 to 4 limits long, on one rank or on both; the limit was {LIMIT_S:g} s "
        f"(`--hang-after {LIMIT_S:g}`, default 30; with earlier rules {EARLIER_LIMIT_S:g} s, "
        "which a step can exceed when many jobs share the processors). Step "
        "lengths, gradient accumulation, slow batches, also right after a part, a slower rank and "
        "the meetings after a part are drawn for each "
        "job. Ranks also work in code without a name before the first step and after the last "
        "one. `torch, epochs` has several epochs, other models and other ways to evaluate and to "
        "write checkpoints; it was written without knowledge of the rules about alarms. Every "
        "alarm here is a false one. A notice says that a part may take as long as it does. "
        "`benchmarks/hangs/healthy_hours.py` runs them."
    )
    yield ""
    head = "| job | jobs | hours of training | steps of both ranks | notices | alarms |"
    yield f"{head} why: did not hang |"
    yield "|---|---|---|---|---|---|---|"
    whole = counted(jobs)
    for kind in (*JOBS, "all"):
        own = [job for job in whole if kind in {job["framework"], "all"}]
        hours = sum(job["trained_s"] for job in own) / 3600
        alarms = sum(len(job["alarms"]) for job in own)
        quiet = sum(job["why"] == "did not hang" for job in own)
        cells = [kind.replace("_", ", "), len(own), f"{hours:.2f}"]
        cells += [sum(job[name] for job in own) for name in ("steps", "notices")]
        cells += [alarms, f"{quiet} of {len(own)}"]
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""
    for job in [*jobs, *before]:
        who = f"{'with earlier rules, ' * (job in before)}{job['framework']} {job['seed']}"
        if job["code"] != 0:
            why = f": {job['failed']}" if "failed" in job else ""
            yield f"- {who}: ended with exit code {job['code']}, and is not counted{why}"
        elif "beyond" in job:
            yield f"- {who}: left its plan, and is not counted: {job['beyond']}"
        for alarm in job["alarms"]:
            yield f"- {who}: {alarm}"


def with_section(page: str, lines: list[str]) -> str:
    """Return the page with this section in place of the one that it has, before the list."""
    section = "\n".join(lines).rstrip() + "\n\n"
    before, mark, after = page.partition("## All hangs\n")
    return before.partition(f"{TITLE}\n")[0] + section + mark + after


if __name__ == "__main__":
    main()
