"""Explain why two runs differ: rows that add up to the gap, and likely causes.

Rows are time per sample and rank, so that runs of different batch sizes and rank counts can be
compared. Only exposed time counts; overlapped time is listed separately. 'unknown' is wall time
that no row covers. With more than two runs, a scaling table compares each run with the first.

'profkit run --repeats 3 --against "BASE COMMAND" -- TARGET COMMAND' records repeats of two commands
in turn, as two groups. Give a group for each side, or 'BASE1,BASE2 TARGET1,TARGET2', or two folders
of runs. Differences between repeats widen the intervals. With one run per side, a change that the
machine may have caused is probable or inconclusive. A job's name, as in traces/NAME, is its newest
run.

A gate limits the change of the total (--gate 3%) or of a row (--gate allreduce=4ms, per step of the
base's batch). Exit code 10 means that the change is above the limit, beyond its interval. Exit code
11 means inconclusive.

A baseline is a copy of a run under a name. 'profkit explain --save-baseline main RUN' keeps one.
'profkit explain --baseline main TARGET --gate 3%' compares with it. With both options, the target
becomes the baseline if it passes. Exit code 3 means that the baseline is missing or was changed.
If a name had at least 4 runs of the target's setting, their noise judges the gate of the total.

'profkit explain RUN published' compares a run with the figures that are published for its setting
of a reference system. Other figures can be given with --published FILE.

'profkit explain RUN --at STEP' compares a run with itself, before the step and from it on.
'profkit report RUN' lists the steps at which its step time changed.

Two memory snapshots, which 'profkit import' reads, are compared in bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.address import Address, to_path
from profkit.commands._options import add_scheduler, whole
from profkit.commands._published import KNOWN, compare_run, figures_for
from profkit.commands._shapes import add_shapes, check_shape, deliver, renderers
from profkit.errors import ExitCode, UsageError
from profkit.text import safe_text
from profkit.vocab import RUN_FILE

if TYPE_CHECKING:
    from profkit.explain.gate import Gate
    from profkit.show.document import Document
    from profkit.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=to_path,
        nargs="+",
        metavar="RUN",
        help="BASE and TARGET, each a run, a name or repeats; with more targets a scaling table",
    )
    parser.add_argument(
        "--at", metavar="STEP", help="compare one run's steps before and from it on"
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="LIMIT",
        help="the largest change that passes, such as 3%% or allreduce=4ms; may be repeated",
    )
    add_baseline(parser)
    parser.add_argument(
        "--published",
        type=Path,
        metavar="FILE",
        help="compare with the published figures in this CSV file (see docs/import.md)",
    )
    add_scheduler(parser)
    add_shapes(parser)


def add_baseline(parser: argparse.ArgumentParser) -> None:
    """Declare the options about runs that are kept under a name."""
    parser.add_argument(
        "--baseline", metavar="NAME", help="use the run that is kept under this name as BASE"
    )
    parser.add_argument(
        "--save-baseline",
        metavar="NAME",
        help="keep a copy of the last run under this name if it passes its gates",
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="FOLDER",
        help="folder of baselines (default: %(default)s)",
    )
    parser.add_argument(
        "--last",
        type=whole(1, 200),
        default=50,
        metavar="N",
        help="with --baseline: compare with the last N runs that had the name (default: "
        "%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    from profkit.analysis.views.history import record_of
    from profkit.explain.gate import Gate
    from profkit.run.scheduling import check_scheduler
    from profkit.trace import Trace
    from profkit.trace.baselines import find_baseline, past_of, save_baseline

    gates = [Gate.parse(word) for word in args.gate]
    if len(args.runs) > 1 and str(args.runs[-1]) == KNOWN and not args.runs[-1].exists():
        args.published = args.runs.pop()
    check_shape(args)
    if args.at is not None:
        return _explain_itself(args, gates)
    _check_runs(args)
    check_scheduler(args.scheduler)
    sides = [_repeats(path) for path in args.runs]
    if args.baseline:
        sides.insert(0, [find_baseline(args.baselines, args.baseline)])
        args.past = past_of(args.baselines, args.baseline)
    last = sides[-1][0]
    if len(sides[-1]) > 1 and (args.save_baseline or len(sides) == 1):
        option = "--published takes"
        if args.save_baseline:
            option = "--save-baseline keeps"
        raise UsageError(f"{option} one run, and '{safe_text(str(args.runs[-1]))}' names several")
    code = ExitCode.DONE
    if args.published is not None and len(sides) == 1:
        code = compare_run(last, args)
    elif len(sides) > 1:
        opened = []
        for side in sides:
            opened.append([Trace.open(repeat) for repeat in side])
        code = _compare(opened, gates, args)
    if args.save_baseline and code == ExitCode.DONE:
        kept = save_baseline(args.baselines, args.save_baseline, last, record_of(last))
        named = safe_text(str(last)), safe_text(str(kept))
        words = f"baseline {args.save_baseline} is now {named[0]}, kept as {named[1]}"
        print(words, file=sys.stderr)
    return code


def _explain_itself(args: argparse.Namespace, gates: Sequence[Gate]) -> ExitCode:
    """Compare the steps of one run before and after a place."""
    from profkit.analysis.run_halves import cut_at
    from profkit.run.scheduling import check_scheduler
    from profkit.trace import Trace

    check_scheduler(args.scheduler)
    for option in ("baseline", "save_baseline", "published"):
        if getattr(args, option):
            raise UsageError(
                f"--at compares one run with itself, without --{option.replace('_', '-')}"
            )
    if len(args.runs) != 1:
        raise UsageError(f"--at compares one run with itself, and {len(args.runs)} are given")
    if not args.at.isascii() or not args.at.isdigit():
        raise UsageError(f"--at {safe_text(args.at)}: a step is a whole number, as in --at 1200")
    paths = _repeats(args.runs[0])
    if len(paths) > 1:
        named = safe_text(str(args.runs[0]))
        raise UsageError(f"--at compares one run with itself, and '{named}' names several")
    before, after = cut_at(Trace.open(paths[0]), int(args.at))
    return _explain([before], [after], gates, args)


def _check_runs(args: argparse.Namespace) -> None:
    given = len(args.runs) + bool(args.baseline)
    is_alone = args.published is not None and not args.gate
    if given < 2 and (args.gate or not args.save_baseline) and not is_alone:
        raise UsageError(
            "two runs are compared: give BASE and TARGET, or --baseline NAME and TARGET, or one "
            "run and 'published' or --published FILE (see 'profkit explain --help')"
        )
    if args.gate and given > 2:
        raise UsageError("--gate takes two runs: BASE and one TARGET")


def _repeats(path: Path) -> list[Path]:
    """Return the runs of one argument: a run, a folder or a name, or several with commas."""
    from profkit.commands._options import DEFAULT_RUNS
    from profkit.trace.folders import check_one_session, find_named, find_run, find_runs

    names = str(path).split(",")
    if len(names) > 1 and (isinstance(path, Address) or not path.exists()):
        return [run for name in names for run in _repeats(to_path(name))]
    if path.is_dir():
        runs = [] if (path / RUN_FILE).exists() else find_runs(path)
        check_one_session(path)
        return runs or [path]
    if path.exists():
        return [path]
    below = DEFAULT_RUNS / path if path.name == str(path) else path
    return find_named(path) or find_named(below) or [find_run(path, DEFAULT_RUNS)]


def _compare(
    sides: Sequence[Sequence[Trace]], gates: Sequence[Gate], args: argparse.Namespace
) -> ExitCode:
    if len(sides) == 2:
        return _explain(sides[0], sides[1], gates, args)
    if any(len(runs) > 1 for runs in sides):
        raise UsageError(
            "the scaling table takes one run each; repeats need two sides: "
            "BASE1,BASE2 TARGET1,TARGET2"
        )
    return _scale([runs[0] for runs in sides], args)


def _explain(
    bases: Sequence[Trace],
    targets: Sequence[Trace],
    gates: Sequence[Gate],
    args: argparse.Namespace,
) -> ExitCode:
    from profkit.analysis.kept_ceilings import load_ceilings
    from profkit.explain.explained import explain_repeats
    from profkit.explain.gate import apply_gates, exit_code
    from profkit.explain.past import compare_with_past, judge_by_past
    from profkit.explain.published import compare_with_published
    from profkit.report import history_document, published_document
    from profkit.report.ledger_document import explained, illustrate_sides
    from profkit.run.scheduling import read_ranks

    if len(bases) == len(targets) == 1 and bases[0].path == targets[0].path:
        print("profkit: both sides are the same run", file=sys.stderr)
    if _compare_memory([*bases, *targets], gates, args):
        return ExitCode.DONE
    ceilings = [load_ceilings(side[0].manifest.environment) for side in (bases, targets)]
    for trace in (*bases, *targets):
        read_ranks(trace, args.scheduler, whole=True)
    view = explain_repeats(bases, targets, (ceilings[0], ceilings[1]))
    past = compare_with_past(getattr(args, "past", []), targets, args.last)
    judgements = judge_by_past(apply_gates(view.ledger, gates), past, view.ledger)
    compared = []
    for evidence in (view.case.before, view.case.after) if args.published is not None else ():
        compared.append(compare_with_published(evidence.trace, figures_for(evidence.trace, args)))

    def with_more(document: Document) -> Document:
        first = [] if past is None else [history_document.past_section(past)]
        last = [published_document.section(compared)] if compared else []
        return dataclasses.replace(document, sections=(*first, *document.sections, *last))

    def illustrated() -> Document:
        sides = illustrate_sides(view.case.before.trace, view.case.after.trace)
        return with_more(explained(view, judgements, sides))

    deliver(args, renderers(lambda: with_more(explained(view, judgements)), illustrated))
    return exit_code(judgements)


def _compare_memory(
    traces: Sequence[Trace], gates: Sequence[Gate], args: argparse.Namespace
) -> bool:
    """Print how two memory snapshots differ; return false if no run is one."""
    from profkit.analysis.memory.ledger import read_ledgers
    from profkit.report import memory_document

    ledgers = [read_ledgers(trace.path) for trace in traces]
    if not any(ledgers):
        return False
    if len(ledgers) != 2 or not all(ledgers) or gates:
        raise UsageError("a memory snapshot compares with one other snapshot, without --gate")
    names = traces[0].name, traces[1].name
    before, after = ledgers[0][0], ledgers[1][0]
    deliver(args, renderers(lambda: memory_document.compare(names, before, after)))
    return True


def _scale(traces: Sequence[Trace], args: argparse.Namespace) -> ExitCode:
    from profkit.explain.explained import scale_runs
    from profkit.report.scaling_document import scaling
    from profkit.run.scheduling import read_ranks

    for trace in traces:
        read_ranks(trace, args.scheduler)
    rows = scale_runs(traces)
    deliver(args, renderers(lambda: scaling(rows)))
    return ExitCode.DONE
