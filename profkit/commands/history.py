"""Show the runs of a folder over time, and when the speed of a job changed.

Runs of one setting (job, framework, ranks, precision, device, batch, machine) are one history. A
change is reported if the runs before and after it differ by more than runs do without one. At most
1 of 200 histories without a change has one reported, or about 6 if successive runs resemble each
other (docs/history.md). A history needs 8 runs.

'profkit history --baseline main' shows the runs that were the baseline: each 'profkit explain
--save-baseline main RUN' adds one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.address import to_path
from profkit.commands._options import DEFAULT_RUNS, whole
from profkit.commands._shapes import add_shapes, check_shape, deliver, renderers
from profkit.errors import ExitCode, UnreadableError

if TYPE_CHECKING:
    from profkit.analysis.views.history import Histories

LAST = 50
"""Runs of a history if the user does not say how many."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=to_path,
        nargs="?",
        default=DEFAULT_RUNS,
        metavar="FOLDER",
        help="folder of runs (default: %(default)s)",
    )
    parser.add_argument(
        "--last",
        type=whole(1, 200),
        default=LAST,
        metavar="N",
        help="the last N runs of each setting (default: %(default)s)",
    )
    parser.add_argument("--baseline", metavar="NAME", help="the runs that had this name instead")
    parser.add_argument(
        "--baselines",
        type=Path,
        default=Path("baselines"),
        metavar="FOLDER",
        help="folder of baselines (default: %(default)s)",
    )
    add_shapes(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.report import history_document

    check_shape(args)
    found = read_folder(args)
    place = f"baseline {args.baseline}" if args.baseline else str(args.folder)
    makers = renderers(
        brief=lambda: history_document.histories(found, place),
        full=lambda: history_document.histories(found, place, is_page=True),
    )
    deliver(args, makers)
    return ExitCode.DONE


def read_folder(args: argparse.Namespace) -> Histories:
    from profkit.analysis.views.history import group_runs, read_histories
    from profkit.text import safe_text
    from profkit.trace.baselines import past_of
    from profkit.trace.folders import find_runs

    if args.baseline:
        return group_runs(past_of(args.baselines, args.baseline), args.last)
    if not find_runs(args.folder):
        why = "no such folder"
        if args.folder.is_dir():
            why = "holds no runs"
        raise UnreadableError(
            f"{safe_text(str(args.folder))}: {why}; make one with 'profkit run -- COMMAND'"
        )
    return read_histories(args.folder, args.last)
