"""Run small jobs of several ranks bare and recorded, and check what profkit says of them.

    python benchmarks/nccl_ranks.py --backend nccl --work FOLDER [NAME ...]

With NCCL, all ranks share one GPU (`nccl_job.py`). With gloo, the same jobs run on the CPU, which
rehearses them. It prints a line per check, writes FOLDER/results.json, and exits with 1 if a check
fails. Each job has a limit of its own, so that a deadlock ends only itself.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import results
from nccl_checks import (
    CHANGED,
    CHECKS,
    HANG_AFTER_S,
    ONLY_NCCL,
    Check,
    Ran,
    check_both,
    sides_of,
)

JOB = Path(__file__).parent / "nccl_job.py"
GRACE_S, LEAST_S = 10, 20
"""A job's ranks end so long before the job is ended; the shortest time that is of use to a job."""
STUCK_S = {"bare": 1, "recorded": HANG_AFTER_S + 10}
"""How long a hang lasts, before a signal ends the ranks."""
WATCHED = ("stuck", "exits", "raises", "sizes")
"""The scenarios whose ranks may wait for each other forever."""
STEPS = {
    "ddp": 150,
    "late": 150,
    "stuck": 100,
    "fsdp2": 60,
    "tp": 60,
    "pp": 60,
    "experts": 60,
    "exits": 100,
    "sizes": 100,
    "raises": 100,
    "graph": 80,
    "settings": 60,
    "cost": 150,
    "compiled": 60,
    "no_sync": 80,
    "every_sync": 80,
}
"""The steps of each scenario. The most important come first: time may run out."""


@dataclass(frozen=True)
class Setting:
    """What all jobs have in common."""

    backend: str
    work: Path
    ranks: int = 2
    python: str = sys.executable
    """The interpreter of the jobs."""
    limit_s: int = 60
    """The limit of each job."""

    def run(self, scenario: str, side: str, limit_s: float) -> Ran:
        """Run a job, bare or recorded; its output goes into a log."""
        folder = self.work / scenario / side
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "out").mkdir(parents=True)
        began = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                self._command(scenario, side, folder),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SHARDED_WIDTH": "128",
                    "TORCH_DIST_USE_NCCL2": "0",  # DDP's buckets over the other one are not timed
                    **(CHANGED if scenario == "settings" else {}),
                },
            )
            code = wait_for(process, limit_s)
        return Ran(scenario, side, folder, self.backend, self.ranks, code, time.monotonic() - began)

    def _command(self, scenario: str, side: str, folder: Path) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        command = [self.python, *launcher, "--nproc-per-node", str(self.ranks), str(JOB), scenario]
        command += ["--backend", self.backend, "--out", str(folder / "out")]
        command += ["--steps", str(STEPS[scenario]), "--limit-s", str(self.limit_s - GRACE_S)]
        is_bare = side.startswith("bare")
        command += ["--stuck-s", str(STUCK_S["bare" if is_bare else "recorded"])]
        if is_bare:
            return command
        record = [sys.executable, "-m", "profkit", "run", "-o", str(folder / "runs")]
        if scenario in WATCHED:
            record += ["--hang-after", str(HANG_AFTER_S)]
        if scenario == "cost" and side.startswith("recorded"):
            record += ["--lines", "off"]  # the eye samples them
        return [*record, "--name", scenario, "--", *command]


def wait_for(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Return a job's exit code, or nothing if it had to be ended; its ranks end themselves."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(limit_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    return None


def examine(setting: Setting, scenario: str, runs: dict[str, Ran], until: float) -> Iterator[Check]:
    """Run a scenario on its sides, and yield what is right and wrong about it."""
    for side in sides_of(scenario):
        left_s = until - time.monotonic()
        if left_s < LEAST_S:
            yield Check(scenario, "run", is_right=False, detail="no time left")
            return
        runs[f"{scenario} {side}"] = setting.run(scenario, side, min(setting.limit_s, left_s))
    for check in (check_both, *CHECKS[scenario]):
        yield from guarded(check, scenario, runs)


def guarded(
    check: Callable[[str, dict[str, Ran]], Iterator[Check]], scenario: str, runs: dict[str, Ran]
) -> Iterator[Check]:
    """Yield the results of a check; one that cannot be made has failed, and ends no other."""
    try:
        yield from check(scenario, runs)
    except Exception as error:  # noqa: BLE001  # a job may have written anything, or nothing
        yield Check(scenario, check.__name__, is_right=False, detail=repr(error)[:300])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=450.0, help="for all jobs together")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(STEPS)}")
    args = parser.parse_intermixed_args()
    setting = Setting(args.backend, args.work.absolute(), args.ranks)
    until, runs, checks = time.monotonic() + args.limit_s, dict[str, Ran](), list[Check]()
    say = functools.partial(print, flush=True)
    for scenario in args.names or STEPS:
        if args.backend != "nccl" and scenario in ONLY_NCCL:
            say(f"not run  {scenario}: {ONLY_NCCL[scenario]}")
            continue
        for check in examine(setting, scenario, runs, until):
            say(check.line())
            checks.append(check)
    found = {
        **results.origin(),
        "machine": results.gpu(),
        "checks": [check._asdict() for check in checks],
        "jobs": {name: {"code": ran.code, "s": ran.took_s} for name, ran in runs.items()},
    }
    (setting.work / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    failed = sum(not check.is_right for check in checks)
    say(f"{len(checks) - failed} of {len(checks)} checks are right")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
