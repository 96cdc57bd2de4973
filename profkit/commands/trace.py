"""Run a reference system, time every step, and show where the time went.

  profkit trace resnet50
  profkit trace resnet50 --batch-size 16 --workers 0 --steps 100

The run is kept below the output folder. Ctrl-C ends it early; what was recorded stays readable.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from profkit.commands._options import add_json, add_output, positive, whole
from profkit.errors import ExitCode
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.workloads._base import Job, Outcome, Settings


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help="which one; 'profkit workloads' lists them")
    parser.add_argument("--framework", default="torch", metavar="NAME", help="torch or paddle (default: %(default)s)")
    parser.add_argument("--steps", type=whole(1), metavar="N", help="how many steps to train")
    parser.add_argument("--warmup", type=whole(0), metavar="N", help="how many of them to leave out of the figures")
    parser.add_argument("--batch-size", type=whole(1), metavar="N", help="samples a step on each rank")
    parser.add_argument("--image-size", type=whole(32, 4096), metavar="PX", help="the images' side after cropping")
    parser.add_argument("--workers", type=whole(0, 512), metavar="N", help="loader processes; 0 loads in the training process")
    parser.add_argument("--lr", type=positive, metavar="RATE", help="learning rate (default: the published one, scaled to the batch)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="the same seed gives the same losses (default: %(default)s)")
    parser.add_argument("--data", default="generated", metavar="WHAT", help="'generated', or the folder of the real data set (default: %(default)s)")
    add_output(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.environment import disabled
    from profkit.plugins import WORKLOADS
    from profkit.workloads._base import Settings

    workload = WORKLOADS.load(args.workload)
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    workload.check(settings)
    with _terminable():
        job = workload.prepare(settings)
        _announce(workload.title, settings, job)
        return _train_bare(job) if disabled() else _train_traced(args, settings, job)


def _announce(title: str, settings: Settings, job: Job) -> None:
    reduced = job.config.get("reduced")
    note = f"; reduced for this machine: {reduced}" if reduced else ""
    print(safe_text(f"{title}, {settings.framework} on {job.device}, {job.config['steps']} steps{note}"), file=sys.stderr)


def _train_bare(job: Job) -> int:
    from profkit.instrument.recorder import NullRecorder
    from profkit.workloads._progress import ProgressBar

    with ProgressBar("training, profkit is switched off by PROFKIT_DISABLE") as progress:
        outcome = job.train(NullRecorder(), lambda step, steps, loss: progress(step, steps))
    _say_losses(outcome)
    return ExitCode.DONE


def _say_losses(outcome: Outcome) -> None:
    print(f"{outcome.steps} steps, loss {outcome.first_loss!r} at the first and {outcome.last_loss!r} at the last", file=sys.stderr)


def _train_traced(args: argparse.Namespace, settings: Settings, job: Job) -> int:
    from profkit.session import open_session, record_own_cost
    from profkit.trace import RunManifest
    from profkit.workloads._progress import ProgressBar

    manifest = RunManifest(workload=args.workload, framework=settings.framework, config=job.config)
    name = f"{args.workload}-{settings.framework}-{job.config['precision']}-1x{job.config['batch_size']}"
    path = None
    try:
        with open_session(args.output, name, manifest, device=job.device) as session, ProgressBar("training") as progress:
            path = session.path
            outcome = job.train(session.recorder, lambda step, steps, loss: progress(step, steps))
    except (KeyboardInterrupt, Terminated):
        if path:
            print(f"stopped early; what was recorded is in {safe_text(str(path))} (see 'profkit report {safe_text(str(path))}')", file=sys.stderr)
        raise
    _say_losses(outcome)
    record_own_cost(path)
    _show(path, args.json)
    return ExitCode.DONE


def _show(path: Any, json: bool) -> None:
    from profkit.analysis.overview import build_overview
    from profkit.report import as_json, as_text
    from profkit.trace.reader import Trace

    view = build_overview(Trace.open(path))
    print(as_json.dumps(as_json.overview(view)) if json else as_text.overview(view, next_command=f"profkit report {shlex.quote(str(path))}"))


class Terminated(SystemExit):
    """The process was told to end by a signal; the exit code is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the run is closed and marked."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
