"""Explain why two runs differ: where the time went, in rows that add up, with intervals and causes.

Rows are time per sample and GPU, so that runs of different batches and ranks compare. Only exposed
time counts; what overlaps stands beside the rows. 'unknown' is the wall time that no row covers.
With more than two runs the scaling table is shown: each against the first.

A gate limits the change of the whole (--gate 3%) or of a row (--gate allreduce=4ms, in a step of
the base's batch). Exit code 10: above the limit, and beyond its interval; 11: it could not be judged.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._options import add_json
from profkit.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from profkit.analysis.gate import Gate
    from profkit.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", type=Path, metavar="BASE", help="the run to compare with")
    parser.add_argument("targets", type=Path, nargs="+", metavar="TARGET", help="the run to explain; more than one for the scaling table")
    parser.add_argument("--gate", action="append", default=[], metavar="LIMIT", help="a change that is too much, as in 3%% or allreduce=4ms; may be repeated")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.analysis.gate import Gate
    from profkit.trace import Trace

    gates = [Gate.parse(word) for word in args.gate]
    if gates and len(args.targets) > 1:
        raise UsageError("--gate takes two runs: BASE and one TARGET")
    traces = [Trace.open(path) for path in (args.base, *args.targets)]
    return _explain(traces[0], traces[1], gates, as_json=args.json) if len(traces) == 2 else _scale(traces, as_json=args.json)


def _explain(base: Trace, target: Trace, gates: list[Gate], *, as_json: bool) -> int:
    from profkit.analysis.gate import apply_gates, exit_code
    from profkit.report import ledger_json, ledger_text
    from profkit.report.as_json import dumps
    from profkit.report.explained import explain

    view = explain(base, target)
    judgements = apply_gates(view.ledger, gates)
    print(dumps(ledger_json.explained(view, judgements)) if as_json else ledger_text.explained(view, judgements))
    return exit_code(judgements)


def _scale(traces: list[Trace], *, as_json: bool) -> int:
    from profkit.report import ledger_json, ledger_text
    from profkit.report.as_json import dumps
    from profkit.report.explained import scale_runs

    rows = scale_runs(traces)
    print(dumps(ledger_json.scaling(rows)) if as_json else ledger_text.scaling(rows))
    return ExitCode.DONE
