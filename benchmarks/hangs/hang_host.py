"""Keep a framework imported and fork the ranks of jobs, because imports outlast a job.

    python benchmarks/hangs/hang_host.py FRAMEWORK WORK AT_ONCE LIMIT PLANT/RANKS ...

Each job has a supervisor, which stands for `profkit run`: it makes the run's folder and raises the
alarm. Its ranks are hooked as `profkit run` hooks them. After the verdict all ranks are killed, and
`profkit why` reads the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from hang_launch import free_ports, rank_variables
from hang_plants import BY_NAME, HEALTHY, Plant

PATIENCE_S = 120.0
LONGEST_TRAINING_S = 12.0
AFTER_VERDICT_S = 1.0
ALARM = "the job stands still"
MODULES = {
    "torch": ("torch", "torch._dynamo", "torch.nn.parallel", "torch.utils.data"),
    "paddle": ("paddle", "paddle.distributed", "paddle.io"),
}
PROFKIT = ("profkit.run.job", "profkit.run.hang_alarm", "profkit.run.run_folder", "profkit.trace")
STEP = 47
"""The usual step before which a job hangs."""


def main() -> None:
    framework, work, at_once = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    limit_s = float(sys.argv[4])
    for module in (*MODULES[framework], *PROFKIT):
        importlib.import_module(module)
    gc.freeze()
    running: set[int] = set()
    for words in sys.argv[5:]:
        name, ranks = words.split("/")
        while len(running) >= at_once:
            running.discard(os.wait()[0])
        job = functools.partial(supervise, work, framework, name, int(ranks), limit_s)
        running.add(in_child(job))
    while running:
        running.discard(os.wait()[0])


def in_child(act: Callable[[], object]) -> int:
    """Run a function in a forked child, which never returns; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  # as Python does with what nobody catches
        sys.last_value = error
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # the handlers of this fork
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def supervise(work: Path, framework: str, name: str, ranks: int, limit_s: float) -> None:
    """Run one job until its verdict, end it, and keep what profkit said."""
    from profkit.hangs.account import read_account
    from profkit.run.hang_alarm import HangAlarm
    from profkit.run.outside import eye_on
    from profkit.run.run_folder import make_run
    from profkit.trace import RunManifest

    plant = HEALTHY if name == HEALTHY.name else BY_NAME[name]
    folder = work / f"{framework}-{ranks}-{name}-{limit_s:g}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = make_run(folder / "runs", "job", RunManifest(name, framework, world_size=ranks))
    culprit = ranks // 2 - 1
    at = min(STEP, int(LONGEST_TRAINING_S / plant.step_s))
    words = [name, culprit, at, limit_s, folder]
    said: list[tuple[float, str]] = []
    eye = contextlib.ExitStack()
    eye.enter_context(eye_on(run, os.environ))
    launcher = in_child(lambda: launch(framework, run, ranks, list(map(str, words))))
    alarm = HangAlarm(run, limit_s, lambda line: said.append((time.time(), line)))
    alarm.start()
    started = time.time()
    deadline = time.monotonic() + PATIENCE_S + 2 * limit_s
    said_at, has_ended = wait_for_verdict(launcher, said, folder, plant, deadline)
    time.sleep(AFTER_VERDICT_S)
    alarm.stop()  # whoever kills the ranks kills `profkit run` as well
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher, signal.SIGKILL)
    eye.close()
    planted = folder / "planted"
    if not planted.exists() and plant is not HEALTHY:
        print(f"{folder.name}: the job ended before the hang, see its log", file=sys.stderr)
        return
    planted_at = float(planted.read_text()) if planted.exists() else started
    result = {
        "plant": name,
        "framework": framework,
        "ranks": ranks,
        "culprit": culprit,
        "limit_s": limit_s,
        "step_s": plant.step_s,
        "said_after_s": None if said_at is None else said_at - planted_at,
        "has_ended": has_ended,
        "alarms": sum(ALARM in line for _, line in said),
        "early_alarms": sum(ALARM in line and at < planted_at for at, line in said),
        "said": [line for _, line in said],
        "account": dataclasses.asdict(read_account(run)),
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1))


def wait_for_verdict(
    launcher: int,
    said: list[tuple[float, str]],
    folder: Path,
    plant: Plant,
    deadline: float,
) -> tuple[float | None, bool]:
    """Return when profkit said the verdict, if it did, and true if the job ended before.

    What it said of the job's start does not count.
    """
    has_ended = False
    while time.monotonic() < deadline and not has_ended:
        has_come = find_verdict(said, folder, plant) is not None
        if has_come and not (plant.goes_on or plant.ends):
            break
        has_ended = os.waitpid(launcher, os.WNOHANG) != (0, 0)
        time.sleep(0.1)
    return find_verdict(said, folder, plant), has_ended


def find_verdict(said: list[tuple[float, str]], folder: Path, plant: Plant) -> float | None:
    planted = folder / "planted"
    since = 0.0
    with contextlib.suppress(OSError, ValueError):
        since = float(planted.read_text())
    if not since and plant.name not in {"join", HEALTHY.name}:
        return None
    return next((at for at, line in said if at > since and "no step for" in line), None)


def launch(framework: str, run: Path, ranks: int, words: list[str]) -> None:
    """Fork the ranks in a group of their own; if one fails, the others are ended."""
    os.setpgid(0, 0)
    log = os.open(run.parent.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ports = free_ports(ranks)
    running = set()
    for rank in range(ranks):
        running.add(in_child(functools.partial(be_a_rank, framework, run, rank, ports, words)))
    while running:
        time.sleep(0.1)  # as torchrun, which looks ten times a second, and ends ranks so
        pid, status = os.waitpid(-1, os.WNOHANG)
        running.discard(pid)
        if status:
            os.killpg(0, signal.SIGTERM)


def be_a_rank(framework: str, run: Path, rank: int, ports: list[int], words: list[str]) -> None:
    """Be a rank as a launcher under `profkit run` starts one."""
    os.environ.update(rank_variables(rank, ports))
    os.environ.update(
        {
            "PROFKIT_RUN": str(run.absolute()),
            "PROFKIT_HANG_AFTER": words[3],
            "PROFKIT_COLLECT": "none",
        }
    )
    sys.argv = [f"hang_job_{framework}.py", *words]
    importlib.import_module("profkit.run.attach.arming").arm_job()
    importlib.import_module(f"hang_job_{framework}").main()


if __name__ == "__main__":
    main()
