"""Plant hangs into small jobs, and count how often profkit names rank, class and line.

python benchmarks/hangs run              run the missing ones into --work; may be interrupted
python benchmarks/hangs score            show the verdicts as a table
python benchmarks/hangs score --write    also write docs/hangs-accuracy.md
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plants import BOTH, DEVELOPMENT, HELD_OUT, HERE, PLANTS, Plant

LIMIT_S = 4.0
PATIENCE_S = 120.0
AFTER_ALARM_S = 1.0
RANKS = {DEVELOPMENT: lambda count: count - 1, HELD_OUT: lambda count: count // 2 - 1}
STEPS = {DEVELOPMENT: 30, HELD_OUT: 47}
HEALTHY = Plant("healthy", ())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("plants", nargs="*", metavar="PLANT")
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-hangs"))
    parser.add_argument("--framework", choices=BOTH, action="append")
    parser.add_argument("--variant", choices=(DEVELOPMENT, HELD_OUT), action="append")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_intermixed_args()
    if args.what == "score":
        from scoring import score

        score(args.work, write=args.write)
        return
    for variant in args.variant or [DEVELOPMENT, HELD_OUT]:
        for framework in args.framework or BOTH:
            for count in args.ranks or [2, 4]:
                for plant in (*PLANTS, HEALTHY):
                    is_wanted = not args.plants or plant.name in args.plants
                    if is_wanted and framework in plant.frameworks:
                        run_once(args.work, plant, variant, framework, count)


def run_once(work: Path, plant: Plant, variant: str, framework: str, count: int) -> None:
    """Run one job until its verdict, end it, and keep what profkit said."""
    folder = work / f"{framework}-{count}-{variant}-{plant.name}"
    if (folder / "result.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rank = RANKS[variant](count)
    words = [plant.name, variant, rank, STEPS[variant], LIMIT_S, folder]
    launch = [HERE / "launch.py", count, HERE / f"job_{framework}.py", *words]
    profkit = [sys.executable, "-m", "profkit", "run", "--collect", "none"]
    profkit += ["--hang-after", str(LIMIT_S), "-o", str(folder / "runs"), "--", sys.executable]
    with open(folder / "stderr", "w") as err:
        started = time.time()
        process = subprocess.Popen(
            [*profkit, *map(str, launch)], stderr=err, stdout=err, start_new_session=True
        )
    said_at = wait_for_verdict(process, folder, plant)
    time.sleep(AFTER_ALARM_S)
    end(process, folder)
    run = next(iter((folder / "runs").glob("*/run.json")), None)
    account: dict[str, Any] = {}
    if run is not None:
        why = [sys.executable, "-m", "profkit", "why", "--json", str(run.parent)]
        done = subprocess.run(why, capture_output=True, text=True, check=False)
        account = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr}
    planted = folder / "planted"
    planted_at = float(planted.read_text()) if planted.exists() else started
    result = {
        "plant": plant.name,
        "framework": framework,
        "ranks": count,
        "variant": variant,
        "culprit": rank,
        "said_after_s": None if said_at is None else said_at - planted_at,
        "alarms": (folder / "stderr").read_text().count("the job stands still"),
        "account": account,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    print(describe(result, plant), flush=True)


def wait_for_verdict(process: subprocess.Popen[bytes], folder: Path, plant: Plant) -> float | None:
    """Return the time at which profkit said something, or `None` if the job ended without."""
    deadline = time.monotonic() + PATIENCE_S
    said_at, before = None, 0
    while time.monotonic() < deadline and process.poll() is None:
        text = (folder / "stderr").read_text()
        if not before and (folder / "planted").exists():
            before = len(text) + 1  # what was said of the start does not count
        is_planted = before or plant.name in {"join", "healthy"}
        if is_planted and "no step for" in text[max(0, before - 1) :] and said_at is None:
            said_at = time.time()
            if not (plant.name in {"late", "healthy"} or plant.ends):
                return said_at
        time.sleep(0.1)
    return said_at


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill everything of the job, as a scheduler would: profkit, the launcher and the ranks."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def describe(result: dict[str, Any], plant: Plant) -> str:
    from scoring import judge

    marks = judge(result)
    verdict = (result["account"].get("verdict") or {}).get("text", "")
    name = f"{result['framework']} {result['ranks']} {result['variant']} {plant.name}"
    return f"{name}: {marks} {result['said_after_s']}\n    {verdict}"


if __name__ == "__main__":
    main()
