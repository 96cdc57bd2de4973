"""`profkit trace` in one process, and what its ranks share with it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._places import check_gpus, find_seat, wanted_gpus
from profkit.commands._signals import Terminated
from profkit.errors import ExitCode, ProfkitError
from profkit.text import plural, safe_text

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Place
    from profkit.trace import RunManifest
    from profkit.workloads.base import Outcome, Settings, Workload
    from profkit.workloads.training.prepare import ReadyJob


def train_alone(args: argparse.Namespace, workload: Workload, settings: Settings) -> int:
    from profkit.attached import disabled
    from profkit.instrument.frameworks.base import Place

    if wanted_gpus(args):
        check_gpus(wanted_gpus(args) or 1)
    job = prepare_job(args, workload, settings, Place())
    announce(workload.title, settings, job)
    return _train_bare(job) if disabled() else _train_traced(args, settings, job)


def prepare_job(
    args: argparse.Namespace, workload: Workload, settings: Settings, place: Place
) -> ReadyJob:
    from profkit.workloads.base import wait_passively
    from profkit.workloads.training import prepare as _prepare

    wait_passively()
    seat = find_seat(args, settings, place)
    _prepare.check(workload, settings, on_gpu=seat.gpu is not None)
    return _prepare.prepare(workload, settings, seat)


def announce(title: str, settings: Settings, job: ReadyJob) -> None:
    config = job.config
    ranks = (
        f" and {config['global_batch_size']} in all, {plural(config['world_size'], 'rank')}"
        if config["world_size"] > 1
        else ""
    )
    line = f"{title}, {settings.framework} on {job.device}, {config['precision']}, batch {config['batch_size']} a rank{ranks}, {config['steps']} steps"
    note = f"; reduced for this machine: {config['reduced']}" if config.get("reduced") else ""
    print(safe_text(line + note), file=sys.stderr)


def _train_bare(job: ReadyJob) -> int:
    from profkit.instrument.loop_recorder import NullRecorder
    from profkit.progress import ProgressBar

    with ProgressBar("training, profkit is switched off by PROFKIT_DISABLE") as progress:
        outcome = job.train(NullRecorder(), lambda step, steps, loss: progress(step, steps))
    say_outcome(outcome)
    return ExitCode.DONE


def say_outcome(outcome: Outcome) -> None:
    print(
        f"{outcome.steps} steps, loss {outcome.first_loss!r} at the first and {outcome.last_loss!r} at the last",
        file=sys.stderr,
    )
    for line in notes(outcome):
        print(safe_text(line), file=sys.stderr)


def notes(outcome: Outcome) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
    return tuple(
        note for note in (outcome.stopped, f"evaluation: {figures}" if figures else "") if note
    )


def _train_traced(args: argparse.Namespace, settings: Settings, job: ReadyJob) -> int:
    from profkit.progress import ProgressBar
    from profkit.run.session import open_session, record_own_cost

    path = None
    try:
        with (
            open_session(
                args.output, run_name(args, job), manifest(args, settings, job), device=job.device
            ) as session,
            ProgressBar("training") as progress,
        ):
            path = session.path
            outcome = job.train(session.recorder, lambda step, steps, loss: progress(step, steps))
            session.notes = notes(outcome)
    except BaseException as error:
        say_where(path, error)
        raise
    say_outcome(outcome)
    record_own_cost(path)
    show(path, args.json)
    return ExitCode.DONE


def say_where(path: Path | None, error: BaseException) -> None:
    if path and isinstance(error, KeyboardInterrupt | Terminated | ProfkitError):
        shown = safe_text(str(path))
        print(
            f"stopped early; what was recorded is in {shown} (see 'profkit report {shown}')",
            file=sys.stderr,
        )


def manifest(args: argparse.Namespace, settings: Settings, job: ReadyJob) -> RunManifest:
    from profkit.trace import RunManifest

    return RunManifest(
        workload=args.workload,
        framework=settings.framework,
        config=job.config,
        world_size=job.config["world_size"],
    )


def run_name(args: argparse.Namespace, job: ReadyJob) -> str:
    config = job.config
    return f"{args.workload}-{args.framework}-{config['precision']}-{config['world_size']}x{config['batch_size']}"


def show(path: Path, json: bool) -> None:
    from profkit.analysis.overview import build_overview
    from profkit.report import as_json, as_text
    from profkit.trace.reader import Trace

    view = build_overview(Trace.open(path))
    print(
        as_json.dumps(as_json.overview(view))
        if json
        else as_text.overview(view, next_command=f"profkit report {shlex.quote(str(path))}")
    )
