"""Explain why two runs differ: where the time went, in rows that add up, with intervals and causes.

Rows are time per sample and rank, so that runs of different batches and ranks compare. Only exposed
time counts; what overlaps stands beside the rows. 'unknown' is the wall time that no row covers.
With more than two runs the scaling table is shown: each against the first.

Repeats of one job widen the intervals by how they differ: 'profkit explain BASE1,BASE2 TARGET1,TARGET2', or a
folder of runs for each side.

A gate limits the change of the whole (--gate 3%) or of a row (--gate allreduce=4ms, in a step of
the base's batch). Exit code 10: above the limit, and beyond its interval; 11: it could not be judged.

A baseline is a run that was kept under a name: 'profkit explain --save-baseline main RUN' keeps a copy,
'profkit explain --baseline main TARGET --gate 3%' compares with it. With both, the target takes
the name once it has passed. A baseline that is missing or was changed is exit code 3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import add_scheduler
from profkit.commands._shapes import add_shapes, check_shape, deliver
from profkit.errors import ExitCode, UsageError
from profkit.text import safe_text
from profkit.vocab import RUN_FILE

if TYPE_CHECKING:
    from profkit.commands._shapes import Renderers
    from profkit.explain.explained import Explained
    from profkit.explain.gate import Gate, Judgement
    from profkit.report.document import Document
    from profkit.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="BASE, then TARGET, each a run or repeats; more than one target for the scaling table",
    )
    parser.add_argument(
        "--gate",
        action="append",
        default=[],
        metavar="LIMIT",
        help="a change that is too much, as in 3%% or allreduce=4ms; may be repeated",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="take the run that was kept under this name for BASE"
    )
    parser.add_argument(
        "--save-baseline",
        metavar="NAME",
        help="keep a copy of the last run under this name, once it has passed its gates",
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="FOLDER",
        help="where baselines are kept (default: %(default)s)",
    )
    add_scheduler(parser)
    add_shapes(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.explain.gate import Gate
    from profkit.run.scheduling import check_scheduler
    from profkit.trace import Trace
    from profkit.trace.baselines import find_baseline, save_baseline

    gates = [Gate.parse(word) for word in args.gate]
    check_shape(args)
    _check_runs(args)
    check_scheduler(args.scheduler)
    base = [find_baseline(args.baselines, args.baseline)] if args.baseline else []
    paths = [*base, *args.runs]
    if args.save_baseline and len(_repeats(paths[-1])) > 1:
        raise UsageError(
            f"--save-baseline keeps one run, and '{safe_text(str(paths[-1]))}' names several"
        )
    code = (
        _compare([[Trace.open(each) for each in _repeats(path)] for path in paths], gates, args)
        if len(paths) > 1
        else ExitCode.DONE
    )
    if args.save_baseline and code == ExitCode.DONE:
        kept = save_baseline(args.baselines, args.save_baseline, paths[-1])
        print(
            f"baseline {args.save_baseline} is now {safe_text(str(paths[-1]))}, kept as {safe_text(str(kept))}",
            file=sys.stderr,
        )
    return code


def _check_runs(args: argparse.Namespace) -> None:
    given = len(args.runs) + bool(args.baseline)
    if given < 2 and (args.gate or not args.save_baseline):
        raise UsageError(
            "two runs are compared: give BASE and TARGET, or --baseline NAME and TARGET (see 'profkit explain --help')"
        )
    if args.gate and given > 2:
        raise UsageError("--gate takes two runs: BASE and one TARGET")


def _repeats(path: Path) -> list[Path]:
    """The runs that a word names: one, those of a folder, or several with commas between them."""
    from profkit.trace.reader import find_runs

    if path.is_dir():
        return find_runs(path) if not (path / RUN_FILE).exists() and find_runs(path) else [path]
    several = str(path).split(",")
    return (
        [run for each in several for run in _repeats(Path(each))]
        if len(several) > 1 and not path.exists()
        else [path]
    )


def _compare(
    sides: Sequence[Sequence[Trace]], gates: Sequence[Gate], args: argparse.Namespace
) -> ExitCode:
    if len(sides) == 2:
        return _explain(sides[0], sides[1], gates, args)
    if any(len(runs) > 1 for runs in sides):
        raise UsageError(
            "the scaling table takes one run each; repeats are for two sides: BASE1,BASE2 TARGET1,TARGET2"
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
    from profkit.run.scheduling import open_scheduler

    base, target = bases[0], targets[0]
    ceilings = load_ceilings(base.manifest.environment), load_ceilings(target.manifest.environment)
    with open_scheduler(args.scheduler) as each:
        for trace in (*bases, *targets):
            trace.read_with(each)
    view = explain_repeats(bases, targets, ceilings)
    judgements = apply_gates(view.ledger, gates)
    deliver(args, _shapes(view, judgements))
    return exit_code(judgements)


def _shapes(view: Explained, judgements: Sequence[Judgement]) -> Renderers:
    """A shape that is not asked for is not imported."""

    def text() -> str:
        from profkit.report import ledger_text

        return ledger_text.explained(view, judgements)

    def as_data() -> str:
        from profkit.report import ledger_json
        from profkit.report.as_json import dumps

        return dumps(ledger_json.explained(view, judgements))

    def document() -> Document:
        from profkit.report.ledger_document import explained, illustrate_sides

        return explained(
            view, judgements, illustrate_sides(view.case.before.trace, view.case.after.trace)
        )

    def markdown() -> str:
        from profkit.report import as_markdown

        return as_markdown.document(document())

    def html() -> str:
        from profkit import __version__
        from profkit.report import as_html

        return as_html.document(document(), __version__)

    return {"text": text, "json": as_data, "markdown": markdown, "html": html}


def _scale(traces: Sequence[Trace], args: argparse.Namespace) -> ExitCode:
    from profkit import __version__
    from profkit.explain.explained import scale_runs
    from profkit.report import as_html, as_markdown, ledger_json, ledger_text
    from profkit.report.as_json import dumps
    from profkit.report.ledger_document import scaling
    from profkit.run.scheduling import open_scheduler

    with open_scheduler(args.scheduler) as each:
        rows = scale_runs(traces, each)
    deliver(
        args,
        {
            "text": lambda: ledger_text.scaling(rows),
            "json": lambda: dumps(ledger_json.scaling(rows)),
            "markdown": lambda: as_markdown.document(scaling(rows)),
            "html": lambda: as_html.document(scaling(rows), __version__),
        },
    )
    return ExitCode.DONE
