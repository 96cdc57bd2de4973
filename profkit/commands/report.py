"""Show one run: throughput, where a step goes, data quality, profkit's own cost.

Figures are about steady steps: warm-up, epoch starts and partial batches are counted and left
out. Intervals are 95 % and hold for steps that depend on each other.

--format html makes one page that needs nothing else; --format github appends to a job's summary.
"""

from __future__ import annotations

import argparse

from profkit.commands._options import add_run, add_scheduler, run_or_newest
from profkit.commands._shapes import add_shapes, check_shape, deliver
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser, short=False)
    add_scheduler(parser)
    add_shapes(parser)


def run(args: argparse.Namespace) -> int:
    from profkit import __version__
    from profkit.analysis.kept_ceilings import load_ceilings
    from profkit.analysis.overview import build_overview
    from profkit.report import as_html, as_json, as_markdown, as_text
    from profkit.report.overview_document import illustrate, overview
    from profkit.run.scheduling import check_scheduler, open_scheduler
    from profkit.trace.reader import Trace

    check_shape(args)
    check_scheduler(args.scheduler)
    trace = Trace.open(run_or_newest(args.path, args.output))
    with open_scheduler(args.scheduler) as each:
        trace.read_with(each)
    view = build_overview(trace, load_ceilings(trace.manifest.environment))
    deliver(
        args,
        {
            "text": lambda: as_text.overview(view),
            "json": lambda: as_json.dumps(as_json.overview(view)),
            "markdown": lambda: as_markdown.document(overview(illustrate(trace, view))),
            "html": lambda: as_html.document(overview(illustrate(trace, view)), __version__),
        },
    )
    return ExitCode.DONE
