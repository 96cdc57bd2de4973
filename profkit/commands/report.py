"""Show one run: throughput, where a step goes, data quality, profkit's own cost.

Figures are for steady steps. profkit counts and excludes other steps, such as warm-up, epoch
starts, partial batches, kernel windows and control steps (recording off). Intervals are 95 %
confidence intervals. They stay valid if successive steps depend on each other.

--format html makes one page without external files. --format github appends to the summary of a
GitHub job.
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from profkit.commands._options import (
    add_run,
    add_scheduler,
    run_or_newest,
)
from profkit.commands._shapes import add_shapes, check_shape, deliver, renderers
from profkit.errors import ExitCode

if TYPE_CHECKING:
    from profkit.report.overview_document import Illustrated
    from profkit.show.document import Document


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_scheduler(parser)
    add_shapes(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.analysis.kept_ceilings import load_ceilings
    from profkit.analysis.memory.ledger import find_ledgers, read_ledgers
    from profkit.analysis.overview import build_overview
    from profkit.analysis.stepless import view_stepless
    from profkit.report import memory_document, stepless_document
    from profkit.report.advice import find_answers
    from profkit.report.overview_document import illustrate, overview
    from profkit.run.scheduling import check_scheduler, is_replayed, read_ranks
    from profkit.trace.reader import Trace

    check_shape(args)
    check_scheduler(args.scheduler)
    trace = Trace.open(run_or_newest(args.path, args.output))
    read_ranks(trace, args.scheduler)
    ledgers = read_ledgers(trace.path)
    if not trace.steps.num_rows:  # the first step may have failed
        ledgers, _ = find_ledgers(trace)
    if ledgers:
        show = functools.partial(memory_document.memory, trace.name, trace.path, ledgers)
        deliver(args, renderers(show))
        return ExitCode.DONE
    contents = view_stepless(trace)
    if contents is not None:
        show = functools.partial(stepless_document.stepless, contents)
        deliver(args, renderers(show))
        return ExitCode.DONE
    view = build_overview(trace, load_ceilings(trace.manifest.environment))

    def draw(drawn: Illustrated | None = None) -> Document:
        if not is_replayed(trace):
            return overview(view, drawn, answers=None)
        return overview(view, drawn, answers=find_answers(trace))

    deliver(args, renderers(lambda: overview(view), lambda: draw(illustrate(trace, view)), draw))
    return ExitCode.DONE
