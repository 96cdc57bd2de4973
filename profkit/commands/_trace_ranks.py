"""`profkit trace` on several ranks: the process that starts them, and each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.attached import disabled
from profkit.commands._trace_alone import (
    announce,
    notes,
    prepare_job,
    print_outcome,
    print_place,
    show,
)
from profkit.errors import ExitCode, ProfkitError

if TYPE_CHECKING:
    from profkit.commands._trace_request import TraceRequest
    from profkit.rank import Rank
    from profkit.run.ranks import Team
    from profkit.workloads.base import Outcome
    from profkit.workloads.training.prepare import ReadyJob


def train_team(request: TraceRequest, team: Team) -> int:
    """Start this node's ranks and wait for them.

    The process on the first node keeps `run.json` and shows the run.
    """
    from profkit.run.hang_alarm import raise_alarms
    from profkit.run.ranks import run_ranks
    from profkit.workloads.training.prepare import check, find_data

    check(request.workload, request.settings, on_gpu=bool(request.gpus))
    find_data(request.workload, request.settings)
    run = None
    if team.node == 0 and not disabled():
        run = _new_team_run(request, team)
    extra = {} if request.ranks is None else {"CUDA_VISIBLE_DEVICES": ""}
    try:
        with contextlib.nullcontext() if run is None else raise_alarms(run) as alarm:
            told = alarm.note_told if alarm is not None else lambda: None
            code, why = run_ranks(team, request.words, run, extra=extra, told=told)
    except BaseException as error:
        _conclude(run, f"{type(error).__name__}: {error}")
        raise
    if why and alarm is not None and alarm.unresolved:
        why += f"; it stood still before: {alarm.unresolved}"
    _conclude(run, why)
    if why:
        print(f"profkit: {why}", file=sys.stderr)
        print_place(run, ProfkitError(why))
    elif run is not None:
        show(run, json=request.json)
    return code


def _new_team_run(request: TraceRequest, team: Team) -> Path:
    from profkit.run.run_folder import make_run
    from profkit.trace import RunManifest

    framework = request.settings.framework
    manifest = RunManifest(workload=request.name, framework=framework, world_size=team.world_size)
    return make_run(request.output, f"{request.name}-{framework}-{team.world_size}ranks", manifest)


def _conclude(run: Path | None, why: str) -> None:
    from profkit.run.run_folder import finish_run, record_own_cost

    if run is None:
        return
    finish_run(run, why)
    if not why:
        record_own_cost(run)


def train_as_rank(request: TraceRequest, rank: Rank) -> int:
    """Train as one of several; if profkit started this process, it is told of an error."""
    from profkit.run.job import recorded
    from profkit.run.ranks import RUN_VARIABLE

    given = "" if disabled() else os.environ.get(RUN_VARIABLE)
    try:
        with contextlib.ExitStack() as stack:
            recording = None
            if given:  # the lookout begins before the ranks meet
                recording = stack.enter_context(recorded(Path(given), rank))
            job = prepare_job(request, rank)
            if rank.number == 0:
                announce(request, job)
            run, is_ours = _rank_run(request, job, rank)
            if run is not None:
                recording = recording or stack.enter_context(recorded(run, rank))
                recording.hook(request.settings.framework)
            progress = stack.enter_context(_progress(rank))
            tracker = recording.tracker if recording is not None else None
            outcome = job.train(lambda step, steps, loss: progress(step, steps), tracker)
        if rank.number == 0:
            _tell_end(run, outcome, is_ours=is_ours)
    except Exception as error:  # the rank ends, whatever the error is
        from profkit.run.ranks import write_error

        if isinstance(error, ProfkitError):
            code, words = error.exit_code, str(error)
        else:
            code, words = ExitCode.UNFINISHED, "".join(traceback.format_exception(error))
        if write_error(words):
            return code
        raise
    return ExitCode.DONE


def _tell_end(run: Path | None, outcome: Outcome, *, is_ours: bool) -> None:
    print_outcome(outcome)
    if run is not None:
        _add_to_manifest(run, notes=notes(outcome))
        if is_ours:
            _conclude(run, "")


@contextlib.contextmanager
def _progress(rank: Rank) -> Iterator[Any]:
    """Show progress on the first rank only."""
    from profkit.progress import ProgressBar

    if rank.number:
        yield lambda step, steps: None
        return
    with ProgressBar("training") as progress:
        yield progress


def _rank_run(request: TraceRequest, job: ReadyJob, rank: Rank) -> tuple[Path | None, bool]:
    """Return the run's folder, if it is recorded, and True if this rank keeps `run.json`.

    It does if no process of profkit's started it. On a node that does not share the first one's
    disk, a folder of the same name is made.
    """
    from profkit.run.ranks import RUN_VARIABLE
    from profkit.run.run_folder import make_run

    if disabled():
        return None, False
    given = os.environ.get(RUN_VARIABLE)
    name = ""
    if rank.number == 0 and given:
        name = Path(given).name
    elif rank.number == 0:
        name = make_run(request.output, request.run_name(job), request.manifest(job)).name
    name = job.share(name)
    run = Path(given) if given else request.output / name
    run.mkdir(parents=True, exist_ok=True)
    if rank.number == 0 and given:
        _add_to_manifest(run, config=job.config)
    return run, not given


def _add_to_manifest(run: Path, **changes: Any) -> None:
    from profkit.trace import RunManifest

    dataclasses.replace(RunManifest.read(run), **changes).write(run)
