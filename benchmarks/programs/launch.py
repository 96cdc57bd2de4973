"""Run a program bare and under `profkit run`, each with the probe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from registry import Program

HERE = Path(__file__).resolve().parent
PROBE, JOBS = HERE / "probe", HERE / "jobs"
PATIENCE_S = 400
LONGEST_ERRORS = 3000
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "PROBE_OUT")


@dataclass(frozen=True)
class Side:
    """One of both jobs: its exit code, its processor time and the end of its errors."""

    code: int
    cpu_s: float
    wall_s: float
    errors: str


def run_pair(program: Program, python: Path, folder: Path) -> None:
    """Run both sides and write `result.json`, or the reason why the program cannot run here."""
    folder.mkdir(parents=True)
    reason = _why_not(program, python)
    result: dict[str, object] = {"skipped": reason}
    if not reason:
        sides = {}
        for recorded in (False, True):
            side = launch(program, python, folder, recorded=recorded)
            sides["recorded" if recorded else "bare"] = asdict(side)
            if side.code:
                break  # the other one would tell nothing
        result |= sides
    result["made"] = time.strftime("%Y-%m-%d", time.gmtime())
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _why_not(program: Program, python: Path) -> str:
    """Return why the program cannot run: the packages that are not installed."""
    look = (
        "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if not u.find_spec(n)))"
    )
    words = [str(python), "-c", look, *program.packages]
    missing = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return f"not installed: {', '.join(missing)}" if missing else ""


def launch(program: Program, python: Path, folder: Path, *, recorded: bool) -> Side:
    """Run one side in a folder of its own; all of its processes are ended if it hangs."""
    place = folder / ("recorded" if recorded else "bare")
    for name in ("cwd", "probe"):
        (place / name).mkdir(parents=True)
    words = program.command(str(python), str(JOBS))
    if recorded:
        own = [str(python), "-m", "profkit", "run", *program.options]
        words = [*own, "--output", str(place / "traces"), "--", *words]
    environ = {name: text for name, text in os.environ.items() if _is_handed_on(name)}
    environ |= {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PROBE),
        "PROBE_OUT": str(place / "probe"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "YOLO_CONFIG_DIR": str(place),
        "YOLO_OFFLINE": "true",
        "DS_ACCELERATOR": "cpu",
        "TOKENIZERS_PARALLELISM": "false",
    }
    began = time.monotonic()
    with open(place / "out", "wb") as out, open(place / "err", "wb") as err:
        process = subprocess.Popen(
            words, cwd=place / "cwd", env=environ, stdout=out, stderr=err, start_new_session=True
        )
        alarm = _Alarm(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
    process.returncode = code = os.waitstatus_to_exitcode(status)
    errors = (place / "err").read_text(encoding="utf-8", errors="replace")[-LONGEST_ERRORS:]
    wall_s = time.monotonic() - began
    return Side(code, usage.ru_utime + usage.ru_stime, wall_s, errors)


class _Alarm:
    """Ends a process group after `PATIENCE_S`."""

    def __init__(self, group: int) -> None:
        import threading

        self._timer = threading.Timer(PATIENCE_S, os.killpg, (group, signal.SIGKILL))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()


def _is_handed_on(name: str) -> bool:
    return not name.startswith("PROFKIT_") and name not in NOT_HANDED_ON
