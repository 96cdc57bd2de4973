"""Answer questions of coding agents about runs.

It speaks the Model Context Protocol over stdin and stdout, and listens nowhere. An agent starts it;
the agent's configuration names 'profkit mcp --root traces'. The tools are runs, report, explain,
whatif and why. They return what 'profkit report --json' and the other verbs print, also when a
question is inconclusive. They only read, and only below --root.
Needs the package mcp: pip install 'profkit[mcp]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from profkit.commands._options import DEFAULT_RUNS
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        type=Path,
        default=DEFAULT_RUNS,
        metavar="FOLDER",
        help="folder of the runs that may be read (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    from profkit.agents.answers import open_root
    from profkit.agents.server import make_server

    make_server(open_root(args.root)).run("stdio")
    return ExitCode.DONE
