"""Run and record your own training command, without changing it.

  profkit run -- python train.py --epochs 2
  profkit run -- torchrun --nproc-per-node 2 train.py
  profkit run -- python -m paddle.distributed.launch --devices 0,1 train.py

Even two runs of the same job differ. To compare two commands, run both several times in turn:

  profkit run --repeats 3 --against 'python old.py' -- python new.py
  profkit explain traces/new-base traces/new-target

The job keeps its output, its signals and its exit code. profkit installs hooks only in the
processes that the job starts. Only those that train write files. Exit codes 125, 126 and 127 mean
that the command could not be started, was not executable, or was not found.
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from profkit.commands._options import (
    add_collect,
    add_hang_after,
    add_output,
    pass_on_collect,
    pass_on_hang_after,
    whole,
)
from profkit.commands._preflight import look_at_job
from profkit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from profkit.metrics.base import Sink


def configure(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    add_collect(parser)
    parser.add_argument(
        "--name",
        default="",
        help="name of the job and of its run (default: the script's name)",
    )
    parser.add_argument(
        "--samples-per-step",
        type=whole(1),
        metavar="N",
        help="samples that each rank trains on in a step, for a loop without a loader "
        "(default: counted from its loader)",
    )
    add_hang_after(parser)
    add_sinks(parser)
    parser.add_argument(
        "--repeats",
        dest="run_repeats",  # the variable PROFKIT_REPEATS is the one of 'profkit bench'
        type=whole(1, 1000),
        metavar="N",
        help="run the command N times, as one group (default: 1, with --against 3)",
    )
    parser.add_argument(
        "--against",
        metavar="COMMAND",
        help="also run this command N times, in turn; the groups' names end in -base and -target",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND ...",
        help="the command and its arguments",
    )


def add_sinks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export-to",
        action="append",
        default=[],
        metavar="PLACE",
        help="hand the figures on while the job runs: FILE.prom for Prometheus' textfile "
        "collector, or the address of an OTLP receiver; may be repeated",
    )
    parser.add_argument(
        "--log-to",
        action="append",
        default=[],
        metavar="TRACKER",
        help="log the figures to mlflow, wandb or tensorboard, as TRACKER or TRACKER=PLACE; "
        "may be repeated",
    )


def open_sinks(args: argparse.Namespace) -> list[Sink]:
    """Return the receivers of the figures; a missing package is an error before the job."""
    if not (args.export_to or args.log_to):
        return []
    from profkit.metrics.base import open_export, open_tracker

    sinks = [open_export(place) for place in args.export_to]
    sinks.extend(map(open_tracker, args.log_to))
    return sinks


def split_command(words: str) -> list[str]:
    """Split the command of --against as a shell does."""
    try:
        command = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--against: {error}; quote it as a shell needs it") from None
    if not command:
        raise UsageError("--against: the command is empty")
    return command


def answer_lines(run: Path) -> list[str]:
    """Return what the report says first and what would help most.

    Nothing is said of a run that is so large that it takes long.
    """
    from profkit.analysis.overview import build_overview
    from profkit.explain.predict.prediction import WORKERS
    from profkit.report.advice import advice, find_answers
    from profkit.report.overview_document import headline
    from profkit.report.whatif_document import headline as best_answer
    from profkit.run.scheduling import is_replayed
    from profkit.trace.reader import Trace

    trace = Trace.open(run)
    if not is_replayed(trace) or not trace.steps.num_rows:
        return []
    answers = find_answers(trace)
    gains, settings = [], []
    for answer in answers.predictions:
        if answer.speed_up is not None and (answer.speed_up.low or 0.0) > 1.0:
            gains.append(answer)
            if answer.question.kind == WORKERS:
                settings.append(answer)
    view = build_overview(trace, with_kernels=False)
    lines = [headline(view), advice(view, answers) or best_answer(settings or gains)]
    return [words[:1].lower() + words[1:] for words in lines if words]


def run(args: argparse.Namespace) -> int:
    from profkit.instrument.guard import guarded
    from profkit.run.launch import end_like, run_job, say

    pass_on_collect(args)
    command = list(args.command)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        raise UsageError(
            "no command was given; write it behind '--', as in: profkit run -- python train.py"
        )
    pass_on_hang_after(args)
    guarded("a look at the machine", look_at_job, None)(command[0])
    samples = args.samples_per_step
    if args.run_repeats is None and args.against is None:
        sinks = open_sinks(args)
        ended = run_job(command, args.output, name=args.name, samples_per_step=samples, sinks=sinks)
        if ended.run is not None and not ended.code:
            for line in guarded("the answer", answer_lines, [])(ended.run):
                say(line)
        return end_like(ended.code)
    if args.export_to or args.log_to:
        raise UsageError("--export-to and --log-to go with one run; leave out --repeats")
    from profkit.run.repeating import DEFAULT_REPEATS, run_repeats

    code = run_repeats(
        command,
        args.output,
        repeats=args.run_repeats or DEFAULT_REPEATS,
        against=() if args.against is None else split_command(args.against),
        name=args.name,
        samples_per_step=samples,
    )
    return end_like(code)
