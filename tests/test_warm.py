"""A program in a fork of a warm Python sees and does what it would in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import Warm

SEEN = """
import json, os, signal, sys
import beside
print(json.dumps({
    "argv": sys.argv, "path": sys.path[:2], "cwd": os.getcwd(), "name": __name__,
    "file": __file__, "mine": os.environ["MINE"], "prefix": sys.prefix, "site": beside.SITE,
    "variables": sorted(os.environ), "in": sys.stdin.read(), "decimal": "decimal" in sys.modules,
    "hup": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
}))
print("told", file=sys.stderr)
"""
ENDS = """
import atexit, os, signal, sys, time
atexit.register(print, "left")
match sys.argv[1]:
    case "raise": raise ValueError("mine")
    case "exit": sys.exit(7)
    case "at once": os._exit(8)
    case "kill": os.kill(os.getpid(), signal.SIGKILL)
    case "segfault": os.kill(os.getpid(), signal.SIGSEGV)
    case "sleep":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        print(os.getpid(), flush=True)
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    made = Warm(["decimal"])
    yield made
    made.end()


def _scripts(folder: Path) -> Path:
    (folder / "seen.py").write_text(SEEN)
    (folder / "ends.py").write_text(ENDS)
    (folder / "beside.py").write_text("import builtins; SITE = builtins.site_has_run")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.site_has_run = 1")
    return folder


@pytest.mark.parametrize("words", [["seen.py", "a", "-b"], ["-u", "seen.py"], ["-m", "seen", "c"]])
def test_a_program_sees_what_it_does_in_a_process(
    words: list[str], warm: Warm, tmp_path: Path
) -> None:
    _scripts(tmp_path)
    environ = {**os.environ, "MINE": "\udc80 ä", "PYTHONPATH": "site"}
    seen = []
    for python in (sys.executable, warm.python):
        done = subprocess.run(
            [python, *words], cwd=tmp_path, env=environ, input=b"given", capture_output=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"told\n"), done.stderr
        seen.append(json.loads(done.stdout))
    assert (seen[0].pop("decimal"), seen[1].pop("decimal")) == (False, True)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("end", ["raise", "exit", "at once", "kill", "segfault", "none"])
def test_it_ends_alike(end: str, warm: Warm, tmp_path: Path) -> None:
    _scripts(tmp_path)
    ended = []
    for python in (sys.executable, warm.python):
        done = subprocess.run(
            [python, "ends.py", end], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        ended.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert ended[0] == ended[1]


def _sleeper(warm: Warm, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    _scripts(folder)
    command = [warm.python, "ends.py", "sleep"]
    job = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    assert job.stdout is not None
    return job, int(job.stdout.readline())


def test_a_signal_reaches_it(warm: Warm, tmp_path: Path) -> None:
    with _sleeper(warm, tmp_path)[0] as job:
        job.terminate()
        assert job.wait() == 9


def test_it_dies_with_the_process_that_stands_for_it(warm: Warm, tmp_path: Path) -> None:
    job, process = _sleeper(warm, tmp_path)
    with job:
        job.kill()
        assert job.wait() == -signal.SIGKILL
        deadline = time.monotonic() + 60
        while Path(f"/proc/{process}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_a_fork_cannot_heed_is_run_by_python(warm: Warm) -> None:
    code = "import sys; print('decimal' in sys.modules, sys.flags.optimize)"
    done = subprocess.run([warm.python, "-O", "-c", code], capture_output=True, check=True)
    assert done.stdout == b"False 1\n"


def test_it_is_run_by_python_if_a_variable_is_read_at_the_start(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "hash.py"
    script.write_text("import sys; print('decimal' in sys.modules, sys.flags.hash_randomization)")
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run([warm.python, str(script)], env=environ, capture_output=True, check=True)
    assert done.stdout == b"False 0\n"


HOLDS = """
import os, sys, time
from tests.warm import Warm
made = Warm(["decimal"])
other = os.fork()  # a worker of a loader, which keeps the pipe to the server
if not other:
    time.sleep(600)
print(made._process.pid, other, flush=True)
if sys.argv[1] == "end":
    made.end()
os._exit(0)
"""


@pytest.mark.parametrize("how", ["end", "die"])
def test_the_server_ends_though_another_fork_holds_its_pipe(how: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS, how], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        server, other = (int(word) for word in owner.stdout.readline().split())
        try:
            assert owner.wait(timeout=60) == 0
            deadline = time.monotonic() + 60
            while Path(f"/proc/{server}").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            os.kill(other, signal.SIGKILL)
