"""Start a command with the hooks in its processes, pass signals on, and end as it ends."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from profkit.attached import NOTES_FILE, RUN_VARIABLE, SAMPLES_VARIABLE, disabled
from profkit.command_words import plain_words
from profkit.errors import ExitCode, ProfkitError
from profkit.hangs.status import read_limit
from profkit.instrument.guard import guarded
from profkit.run.awaiting import DISK_S, DiskWork
from profkit.run.change_alarm import ChangeAlarm
from profkit.run.concluding import Concluded, conclude_run
from profkit.run.hang_alarm import HangAlarm
from profkit.run.naming import clean, name_job, name_run
from profkit.run.outside import outside
from profkit.run.probe import probe_machine
from profkit.run.run_folder import finish_run, make_run
from profkit.run.signals import ENDING, forwarding
from profkit.run.witness import Witness
from profkit.text import safe_text, shell_word
from profkit.trace.manifest import RunManifest
from profkit.vocab import REPEATS

if TYPE_CHECKING:
    from profkit.metrics.base import Sink

log = logging.getLogger("profkit")

ATTACH_FOLDER = Path(__file__).parent / "attach"


class CannotStartError(ProfkitError):
    """The command itself could not be started."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.CANNOT_START) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Repeat(NamedTuple):
    """The place of a run among the repeats of its job."""

    group: str
    number: int
    of: int
    session: str = ""
    """The call of `profkit run` that recorded it; two calls may use one name."""


class Ended(NamedTuple):
    """The end of a job: its exit code, negative for a signal, and the run that it left."""

    code: int
    run: Path | None = None
    """The run, if it has ranks."""
    stopped_by: int = 0
    """The signal that asked profkit and the job to end; 0 without one."""


def run_job(
    command: Sequence[str],
    output: Path,
    *,
    name: str = "",
    samples_per_step: int | None = None,
    repeat: Repeat | None = None,
    sinks: Sequence[Sink] = (),
) -> Ended:
    """Run and record `command`, and return how it ended.

    The job may be given a name, and the number of samples that a rank trains on in each step. Its
    figures go to `sinks` while it runs.
    """
    program = find_program(command[0])
    if samples_per_step is not None:
        os.environ[SAMPLES_VARIABLE] = str(samples_per_step)
    run = None if disabled() else _new_run(command, output, name, samples_per_step, repeat)
    received: list[int] = []
    if run is None:
        with _started(program, command, dict(os.environ), received) as process:
            return Ended(process.wait(), stopped_by=_ending(received))
    path = str(ATTACH_FOLDER)  # the hooks come first on Python's path
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        path = os.pathsep.join([path, inherited])
    environment = {**os.environ, "PYTHONPATH": path, RUN_VARIABLE: str(run.absolute())}
    with contextlib.ExitStack() as stack:
        if sinks:
            from profkit.metrics.follow import following

            stack.enter_context(following(run, sinks, say))
        return _record(run, program, command, environment, received)


def _record(
    run: Path,
    program: str,
    command: Sequence[str],
    environment: dict[str, str],
    received: list[int],
) -> Ended:
    """Run the job with the hooks in its processes, and conclude its run."""
    say(f"recording; watch it with 'profkit tui --follow {shell_word(os.path.relpath(run))}'")
    probes = [probe_machine()]
    alarm = HangAlarm(run, read_limit(os.environ), say)
    changes = ChangeAlarm(run, say)
    try:
        with (
            outside(run, environment),
            _started(program, command, environment, received, alarm.note_told) as process,
        ):
            witness = Witness(run, process.pid, ATTACH_FOLDER)
            watchers = (witness, alarm, changes)
            for watcher in watchers:
                watcher.start()
            code = process.wait()
            end_s = time.monotonic() + DISK_S
            for watcher in reversed(watchers):
                watcher.stop(max(0.0, end_s - DISK_S / 2 - time.monotonic()))
    except CannotStartError as error:
        with contextlib.suppress(ProfkitError):
            DiskWork(functools.partial(finish_run, run, str(error))).finish(run)
        raise
    probes.append(probe_machine())
    found = [probe._asdict() for probe in probes if probe is not None]
    # The caller gets the job's exit code, even if the files of the run cannot be read.
    conclude = guarded("the end of the run", conclude_run, Concluded(False, []))
    work = functools.partial(conclude, run, code, witness, found, alarm.unresolved)
    try:
        concluded = DiskWork(work).finish(run, end_s - time.monotonic())
    except ProfkitError as error:
        concluded = Concluded(False, [f"the run cannot be marked as ended: {error}"])
    for line in concluded.lines:
        say(line)
    return Ended(code, run if concluded.recorded else None, _ending(received))


def _ending(received: Sequence[int]) -> int:
    """Return the first signal that asked the job to end, or 0."""
    return next((number for number in received if number in ENDING), 0)


def find_program(name: str) -> str:
    """Return the file that a shell would run; an error has the exit code of a shell."""
    found = shutil.which(name)
    if found:
        return found
    if os.path.exists(name):
        raise CannotStartError(f"{safe_text(name)}: not executable", ExitCode.NOT_EXECUTABLE)
    raise CannotStartError(f"{safe_text(name)}: command not found", ExitCode.NOT_FOUND)


def _new_run(
    command: Sequence[str],
    output: Path,
    name: str,
    samples_per_step: int | None,
    repeat: Repeat | None,
) -> Path | None:
    """Make the run's folder; without one the job still runs, unrecorded."""
    config: dict[str, Any] = {"command": plain_words(command)}
    if samples_per_step is not None:
        config["samples_per_step"] = samples_per_step
    if repeat is not None:
        config[REPEATS] = repeat._asdict()
    name = name and clean(name)
    manifest = RunManifest(workload=name or name_job(command), config=config)
    try:
        folder = repeat.group if repeat else name or name_run(command)
        make = functools.partial(_make_run, output, folder, manifest)
        remove = functools.partial(shutil.rmtree, ignore_errors=True)
        return DiskWork[Path](make, undo=remove).finish(output)
    except (ProfkitError, OSError) as error:
        say(f"{error}; the job runs unrecorded")
        return None


def _make_run(output: Path, folder: str, manifest: RunManifest) -> Path:
    run = make_run(output, folder, manifest)
    (run / NOTES_FILE).touch(mode=0o600)
    return run


@contextlib.contextmanager
def _started(
    program: str,
    command: Sequence[str],
    environment: dict[str, str],
    received: list[int],
    told: Callable[[], object] = lambda: None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job, and pass signals on to it within the block; `received` gets them all."""
    with forwarding(told, received) as start:
        try:
            process = start(command, executable=program, env=environment)
        except PermissionError as error:
            raise CannotStartError(
                f"{safe_text(program)}: {error.strerror}", ExitCode.NOT_EXECUTABLE
            ) from error
        except OSError as error:
            raise CannotStartError(f"{safe_text(program)}: {error.strerror}") from error
        yield process


def say(line: str) -> None:
    print(f"profkit: {line}", file=sys.stderr)


def end_like(code: int) -> int:
    """Return the exit code to leave with, or die by the signal that killed the job."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    if -code not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code
