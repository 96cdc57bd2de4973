"""`profkit trace` on several ranks: the process that starts them, and each of them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.commands._places import wanted_gpus
from profkit.commands._trace_alone import (
    announce,
    manifest,
    notes,
    prepare_job,
    run_name,
    say_outcome,
    say_where,
    show,
)
from profkit.errors import ExitCode, ProfkitError

if TYPE_CHECKING:
    from profkit.instrument.frameworks.base import Place
    from profkit.run.ranks import Team
    from profkit.workloads.base import Outcome, Settings, Workload
    from profkit.workloads.training.prepare import ReadyJob


def train_team(args: argparse.Namespace, workload: Workload, settings: Settings, team: Team) -> int:
    """Start this node's ranks and wait for them. The first node's process keeps `run.json`, and shows the run."""
    from profkit.run.ranks import run_ranks
    from profkit.workloads.training.prepare import check, find_data

    check(workload, settings, on_gpu=bool(wanted_gpus(args)))
    find_data(workload, settings)
    run = None
    if team.node == 0 and not _disabled():
        run = _new_team_run(args, settings, team)
    extra = {} if args.ranks is None else {"CUDA_VISIBLE_DEVICES": ""}
    try:
        code, why = run_ranks(team, args.words, run, extra=extra)
    except BaseException as error:
        _conclude(run, f"{type(error).__name__}: {error}")
        raise
    _conclude(run, why)
    if why:
        print(f"profkit: {why}", file=sys.stderr)
        say_where(run, ProfkitError(why))
    elif run is not None:
        show(run, args.json)
    return code


def _disabled() -> bool:
    from profkit.attached import disabled

    return disabled()


def _new_team_run(args: argparse.Namespace, settings: Settings, team: Team) -> Path:
    from profkit.run.session import make_run
    from profkit.trace import RunManifest

    manifest = RunManifest(
        workload=args.workload, framework=settings.framework, world_size=team.world_size
    )
    return make_run(
        args.output, f"{args.workload}-{args.framework}-{team.world_size}ranks", manifest
    )


def _conclude(run: Path | None, why: str) -> None:
    from profkit.run.session import finish_run, record_own_cost

    if run is None:
        return
    finish_run(run, why)
    if not why:
        record_own_cost(run)


def train_as_rank(
    args: argparse.Namespace, workload: Workload, settings: Settings, place: Place
) -> int:
    """Train as one of several; an error goes to the process that started this one, if that was profkit."""
    try:
        job = prepare_job(args, workload, settings, place)
        if place.rank == 0:
            announce(workload.title, settings, job)
        _record_as_rank(args, settings, job, place)
    except (
        Exception
    ) as error:  # the rank's end: whatever it was goes to the process that started it, else on
        from profkit.run.ranks import write_error

        expected = isinstance(error, ProfkitError)
        words = str(error) if expected else _last_lines(error)
        if write_error(words):
            return int(error.exit_code) if isinstance(error, ProfkitError) else ExitCode.UNFINISHED
        raise
    return ExitCode.DONE


def _last_lines(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _record_as_rank(
    args: argparse.Namespace, settings: Settings, job: ReadyJob, place: Place
) -> None:
    from profkit.instrument.loop_recorder import NullRecorder
    from profkit.run.session import open_rank

    if _disabled():
        _say_rank(place, job.train(NullRecorder(), lambda step, steps, loss: None))
        return
    run, is_ours = _rank_run(args, settings, job, place)
    with (
        open_rank(run, settings.framework, job.device, place=place) as recorder,
        _progress(place) as progress,
    ):
        outcome = job.train(recorder, lambda step, steps, loss: progress(step, steps))
    _say_rank(place, outcome)
    if place.rank == 0:
        _add_to_manifest(run, notes=notes(outcome))
        if is_ours:
            _conclude(run, "")


def _say_rank(place: Place, outcome: Outcome) -> None:
    if place.rank == 0:
        say_outcome(outcome)


@contextlib.contextmanager
def _progress(place: Place) -> Iterator[Any]:
    """Told by the first rank alone."""
    from profkit.progress import ProgressBar

    if place.rank:
        yield lambda step, steps: None
        return
    with ProgressBar("training") as progress:
        yield progress


def _rank_run(
    args: argparse.Namespace, settings: Settings, job: ReadyJob, place: Place
) -> tuple[Path, bool]:
    """The run's folder, and whether this rank keeps `run.json` because no process of profkit's has started it.

    On a node that does not share the first one's disk, a folder of the same name is made.
    """
    from profkit.run.ranks import RUN_VARIABLE
    from profkit.run.session import make_run

    given = os.environ.get(RUN_VARIABLE)
    if place.rank == 0 and not given:
        made = make_run(args.output, run_name(args, job), manifest(args, settings, job))
    name = job.share((Path(given).name if given else made.name) if place.rank == 0 else "")
    run = Path(given) if given else args.output / name
    run.mkdir(parents=True, exist_ok=True)
    if place.rank == 0 and given:
        _add_to_manifest(run, config=job.config)
    return run, not given


def _add_to_manifest(run: Path, **changes: Any) -> None:
    from profkit.trace import RunManifest

    dataclasses.replace(RunManifest.read(run), **changes).write(run)
