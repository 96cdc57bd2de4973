"""`profkit trace` in one process, and what it shares with several ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.attached import disabled
from profkit.commands._places import check_gpus, find_seat
from profkit.commands._signals import Terminated
from profkit.errors import ExitCode, ProfkitError
from profkit.text import plural, safe_text, shell_word

if TYPE_CHECKING:
    from profkit.commands._trace_request import TraceRequest
    from profkit.rank import Rank
    from profkit.workloads.base import Outcome
    from profkit.workloads.training.prepare import ReadyJob


def train_alone(request: TraceRequest) -> int:
    from profkit.progress import ProgressBar
    from profkit.rank import Rank

    if request.gpus:
        check_gpus(request.gpus)
    job = prepare_job(request, Rank())
    announce(request, job)
    if not disabled():
        return _train_recorded(request, job)
    with ProgressBar("training, recording is switched off by PROFKIT_DISABLE") as progress:
        outcome = job.train(lambda step, steps, loss: progress(step, steps))
    print_outcome(outcome)
    return ExitCode.DONE


def prepare_job(request: TraceRequest, rank: Rank) -> ReadyJob:
    from profkit.workloads.training import prepare

    prepare.set_environment(request.settings.framework, rank.world_size)
    seat = find_seat(request, rank)
    prepare.check(request.workload, request.settings, on_gpu=seat.gpu is not None)
    return prepare.prepare(request.workload, request.settings, seat)


def announce(request: TraceRequest, job: ReadyJob) -> None:
    config = job.config
    batch = f"batch {config['batch_size']} per rank"
    if config["world_size"] > 1:
        ranks = plural(config["world_size"], "rank")
        batch += f" and {config['global_batch_size']} in total, {ranks}"
    where = f"{request.settings.framework} on {job.device}"
    settings = f"{config['precision']}, {batch}, {config['steps']} steps"
    line = f"{request.workload.title}, {where}, {settings}"
    if config.get("reduced"):
        line += f"; reduced for this machine: {config['reduced']}"
    print(safe_text(line), file=sys.stderr)


def _train_recorded(request: TraceRequest, job: ReadyJob) -> int:
    from profkit.progress import ProgressBar
    from profkit.rank import Rank
    from profkit.run.hang_alarm import raise_alarms
    from profkit.run.job import recorded
    from profkit.run.run_folder import finish_run, make_run, reason, record_own_cost

    path = make_run(request.output, request.run_name(job), request.manifest(job))
    try:
        with (
            raise_alarms(path),
            recorded(path, Rank()) as recording,
            ProgressBar("training") as progress,
        ):
            recording.hook(request.settings.framework)
            outcome = job.train(lambda step, steps, loss: progress(step, steps), recording.tracker)
    except BaseException as error:
        finish_run(path, reason(error))
        print_place(path, error)
        raise
    finish_run(path, recording.sink.failure, notes=notes(outcome))
    print_outcome(outcome)
    record_own_cost(path)
    show(path, json=request.json)
    return ExitCode.DONE


def print_outcome(outcome: Outcome) -> None:
    first, last = f"{outcome.first_loss!r} at the first", f"{outcome.last_loss!r} at the last"
    print(f"{outcome.steps} steps, loss {first} and {last}", file=sys.stderr)
    for line in notes(outcome):
        print(safe_text(line), file=sys.stderr)


def notes(outcome: Outcome) -> tuple[str, ...]:
    """Return why training stopped early, other remarks, and the evaluation's figures."""
    lines = [outcome.stopped] if outcome.stopped else []
    lines += outcome.remarks
    if outcome.figures:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
        lines.append(f"evaluation: {figures}")
    return tuple(lines)


def print_place(path: Path | None, error: BaseException) -> None:
    """Say where the recorded part of a run is that was stopped early."""
    if path and isinstance(error, KeyboardInterrupt | Terminated | ProfkitError):
        see = f"see 'profkit report {shell_word(str(path))}'"
        words = f"what was recorded is in {safe_text(str(path))} ({see})"
        print(f"stopped early; {words}", file=sys.stderr)


def show(path: Path, *, json: bool) -> None:
    from profkit.analysis.overview import build_overview
    from profkit.report.advice import find_answers
    from profkit.report.overview_document import overview
    from profkit.show import brief
    from profkit.show import json as show_json
    from profkit.trace.reader import Trace

    trace = Trace.open(path)
    view = build_overview(trace)
    if json:
        print(show_json.dumps(show_json.document(overview(view))))
        return
    command = f"profkit report {shell_word(str(path))}"
    found = overview(view, answers=find_answers(trace), next_command=command)
    print(brief.document(found))
