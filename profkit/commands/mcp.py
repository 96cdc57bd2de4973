"""Answer questions of coding agents about runs.

It speaks the Model Context Protocol over stdin and stdout, and listens nowhere. An agent starts it;
the agent's configuration names 'profkit mcp --root traces'. The tools are runs, report, explain,
whatif and why. They return what 'profkit report --json' and the other verbs print, also when a
question is inconclusive. They only read, and only below --root, and the file of --predictions.
Needs the package mcp: pip install 'profkit[mcp]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from profkit.commands._options import DEFAULT_RUNS
from profkit.commands._predictions import add_predictions, check_predictions
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        default=DEFAULT_RUNS,
        metavar="FOLDER",
        help="folder of the runs that may be read (default: %(default)s)",
    )
    add_predictions(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.agents.answers import open_root
    from profkit.agents.server import make_server

    check_predictions(args)
    make_server(open_root(args.root, args.predictions)).run("stdio")
    return ExitCode.DONE
