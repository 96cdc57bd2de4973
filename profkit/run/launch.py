"""Starts somebody's command with the hooks in its processes, and gets out of the way."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from profkit import __version__
from profkit.attached import NOTES_FILE, RUN_VARIABLE, disabled
from profkit.clock import wall_ns
from profkit.environment import plain_words, read_environment
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.run.session import record_own_cost
from profkit.run.witness import Witness, explain_nothing
from profkit.text import plural, safe_text
from profkit.trace.files import new_run_folder
from profkit.trace.integrity import this_process
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.reader import Trace
from profkit.vocab import RunState

log = logging.getLogger("profkit")

ATTACH_FOLDER = Path(__file__).parent / "attach"
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are sent to profkit alone; Ctrl-C goes to the job's processes from the terminal itself."""


@dataclass(frozen=True)
class CannotStartError(ProfkitError):
    """The command itself could not be started."""

    message: str
    exit_code: ExitCode = ExitCode.CANNOT_START

    def __str__(self) -> str:
        return self.message


def run_job(command: Sequence[str], output: Path) -> int:
    """Run `command` recorded, and end as it ends: the same exit code, or the same signal."""
    program = find_program(command[0])
    run = None if disabled() else _new_run(command, output)
    if run is None:
        with _started(program, command, dict(os.environ)) as process:
            return process.wait()
    with _started(program, command, job_environment(run)) as process:
        witness = Witness(run, process.pid, ATTACH_FOLDER)
        witness.start()
        code = process.wait()
        witness.stop()
    _conclude(run, code, witness)
    return code


def find_program(name: str) -> str:
    """The file that a shell would run; what is wrong gets the exit code that a shell gives it."""
    found = shutil.which(name)
    if found:
        return found
    if os.path.exists(name):
        raise CannotStartError(f"{safe_text(name)}: not executable", ExitCode.NOT_EXECUTABLE)
    raise CannotStartError(f"{safe_text(name)}: command not found", ExitCode.NOT_FOUND)


def job_environment(run: Path) -> dict[str, str]:
    """The environment of the job's processes: ours, with the hooks first on Python's path."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ATTACH_FOLDER), *([inherited] if inherited else [])])
    return {**os.environ, "PYTHONPATH": path, RUN_VARIABLE: str(run.absolute())}


def _new_run(command: Sequence[str], output: Path) -> Path | None:
    """A folder for the run; `None` where none can be made, which costs the recording and not the job."""
    manifest = RunManifest(
        workload=_job_name(command),
        created_ns=wall_ns(),
        profkit_version=__version__,
        owner=this_process(),
        config={"command": plain_words(command)},
        environment=read_environment(),
    )
    try:
        run = new_run_folder(output, f"{manifest.workload}-{time.strftime('%Y%m%d-%H%M%S')}")
        manifest.write(run)
        (run / NOTES_FILE).touch(mode=0o600)
    except OSError as error:
        _say(f"{safe_text(str(output))}: {error.strerror}; the job runs unrecorded")
        return None
    return run


def _job_name(command: Sequence[str]) -> str:
    """What people call the job: its script, or its module."""
    words = list(command)
    scripts = [word for word in words if word.endswith(".py")]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    name = Path(scripts[0]).stem if scripts else (modules or [Path(words[0]).name])[-1]
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in name)[:60] or "job"


@contextlib.contextmanager
def _started(
    program: str, command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job; signals are passed on to it within the block."""
    with forwarding() as start:
        try:
            process = start(command, executable=program, env=environment)
        except PermissionError as error:
            raise CannotStartError(
                f"{safe_text(program)}: {error.strerror}", ExitCode.NOT_EXECUTABLE
            ) from error
        except OSError as error:
            raise CannotStartError(f"{safe_text(program)}: {error.strerror}") from error
        yield process


@contextlib.contextmanager
def forwarding() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """While the jobs run that are started so, their signals are their own: ours are passed on, Ctrl-C is left to them.

    A signal may come while a job is being started, and is passed on then. What a process ignores, those that it
    starts ignore too: so Ctrl-C is handled, by doing nothing, and what `nohup` has us ignore stays ignored.
    """
    processes: list[subprocess.Popen[bytes]] = []
    passed: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        passed.append(number)
        for process in processes:
            process.send_signal(number)

    def start(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, **how)
        processes.append(process)
        for number in passed:
            process.send_signal(number)
        return process

    wanted = {
        **dict.fromkeys(FORWARDED, forward),
        **dict.fromkeys((signal.SIGINT, signal.SIGQUIT), _do_nothing),
    }
    handlers = {
        number: signal.signal(number, handler)
        for number, handler in wanted.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield start
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _conclude(run: Path, code: int, witness: Witness) -> None:
    """Write into the run how the job ended, and say where it lies."""
    try:
        trace = Trace.open(run)
        places = list(_readable_places(trace))
        why = "" if code == 0 else describe_end(code)
        dataclasses.replace(
            trace.manifest,
            state=RunState.ABORTED if why else RunState.COMPLETE,
            why=why,
            ended_ns=wall_ns(),
            world_size=max((place.world_size for place in places), default=1),
            framework=next((place.framework for place in places), ""),
        ).write(run)
    except (ProfkitError, OSError) as error:
        _say(f"the run cannot be marked as ended: {error}")
        return
    if trace.ranks:
        record_own_cost(run)
        shown = safe_text(os.path.relpath(run))
        ranks = plural(len(trace.ranks), "rank")
        _say(f"{ranks} recorded in {shown}; see 'profkit report {shlex.quote(shown)}'")
    else:
        for line in explain_nothing(run, [found for found, _ in witness.unhooked.most_common()]):
            _say(line)
    (run / NOTES_FILE).unlink(missing_ok=True)


def _readable_places(trace: Trace) -> Iterator[RankManifest]:
    """Where the ranks ran; a rank that was killed while it opened its files may not have said."""
    for rank in trace.ranks:
        with contextlib.suppress(ProfkitError):
            yield rank.manifest


def describe_end(code: int) -> str:
    """How a job ended, in words."""
    if code >= 0:
        return f"the job ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the job was killed by {name}"


def _say(line: str) -> None:
    print(f"profkit: {line}", file=sys.stderr)


def end_like(code: int) -> int:
    """The exit code to leave with; a job that a signal killed is followed by the same signal."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    if -code not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def check_command(command: Sequence[str]) -> Sequence[str]:
    """The command without the `--` before it; an empty one is a `UsageError`."""
    words = list(command)
    if words[:1] == ["--"]:
        del words[0]
    if not words:
        raise UsageError(
            "no command was given; write it behind '--', as in: profkit run -- python train.py"
        )
    return words
