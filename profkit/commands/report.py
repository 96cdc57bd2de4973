"""Show one run: throughput, where a step goes, data quality, profkit's own cost.

Figures are about steady steps: warm-up, epoch starts and partial batches are counted and left
out. Intervals are 95 % and hold for steps that depend on each other.
"""

from __future__ import annotations

import argparse

from profkit.commands._options import add_json, add_run, run_or_newest
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.analysis.overview import build_overview
    from profkit.ceilings import load_ceilings
    from profkit.report import as_json, as_text
    from profkit.trace.reader import Trace

    trace = Trace.open(run_or_newest(args.path, args.output))
    view = build_overview(trace, load_ceilings(trace.manifest.environment))
    print(as_json.dumps(as_json.overview(view)) if args.json else as_text.overview(view))
    return ExitCode.DONE
