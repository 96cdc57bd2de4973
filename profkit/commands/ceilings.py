"""Measure what this machine can do at best: matrix rates, copies, decoding, reading, links.

  profkit ceilings
  profkit ceilings --links --ranks 2         all-reduce between two processes, by message size

It is measured once and kept; --again measures anew. Nothing else should run meanwhile. 'profkit
report' holds a run's collectives against the links of the machine it is called on.
"""

from __future__ import annotations

import argparse
import sys

from profkit.commands._options import add_json, whole
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--links", action="store_true", help="measure the links between processes, too"
    )
    parser.add_argument(
        "--ranks",
        type=whole(2, 64),
        default=2,
        metavar="N",
        help="how many processes the links are between (default: %(default)s)",
    )
    parser.add_argument("--again", action="store_true", help="measure anew what is known already")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    import dataclasses

    from profkit.analysis.kept_ceilings import keep_ceilings, load_ceilings
    from profkit.environment import read_environment
    from profkit.machine import ceilings
    from profkit.report.as_json import dumps
    from profkit.report.as_text import ceilings_table

    known = load_ceilings(read_environment())
    found = known
    if found is None or args.again:
        found = dataclasses.replace(
            ceilings.measure_machine(_tell), links=known.links if known else ()
        )
    if args.links and (args.again or not any(links.ranks == args.ranks for links in found.links)):
        _tell(f"links between {args.ranks} processes")
        found = ceilings.with_links(found, ceilings.measure_links(args.ranks))
    path = keep_ceilings(found)
    print(dumps(dataclasses.asdict(found)) if args.json else ceilings_table(found))
    _tell(f"kept in {path}")
    return ExitCode.DONE


def _tell(what: str) -> None:
    print(f"profkit: {what}", file=sys.stderr)
