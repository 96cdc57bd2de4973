"""Measure what this machine can reach: matrix rates, copies, decoding, reading, links.

  profkit ceilings
  profkit ceilings --links --ranks 2         all-reduce between two processes, by message size

profkit keeps the results; --again measures them again. Run nothing else meanwhile. 'profkit report'
compares a run's collectives with the links of the machine on which it runs.
"""

from __future__ import annotations

import argparse
import sys

from profkit.commands._options import add_json, whole
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--links", action="store_true", help="also measure the links between processes"
    )
    parser.add_argument(
        "--ranks",
        type=whole(2, 64),
        default=2,
        metavar="N",
        help="processes that the links connect (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="measure known figures again")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    import dataclasses

    from profkit.analysis.kept_ceilings import keep_ceilings, load_ceilings
    from profkit.environment import read_environment
    from profkit.machine import ceilings
    from profkit.report import machine_sections
    from profkit.show.json import dumps, of
    from profkit.show.text import sections

    known = load_ceilings(read_environment())
    found = known
    if found is None or args.again:
        kept = known.links if known else ()
        found = dataclasses.replace(ceilings.measure_machine(_report_progress), links=kept)
    measured_ranks = [links.ranks for links in found.links]
    if args.links and (args.again or args.ranks not in measured_ranks):
        _report_progress(f"links between {args.ranks} processes")
        found = ceilings.with_links(found, ceilings.measure_links(args.ranks))
    path = keep_ceilings(found)
    if args.json:
        print(dumps(of(found)))
    else:
        print(sections(machine_sections.ceilings(found)))
    _report_progress(f"kept in {path}")
    return ExitCode.DONE


def _report_progress(what: str) -> None:
    print(f"profkit: {what}", file=sys.stderr)
