"""Show what this machine can measure, and why it cannot measure the rest.

Each framework is loaded in a process of its own, which takes some seconds.
"""

from __future__ import annotations

import argparse
import sys

from profkit.commands._options import add_json
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.machine.doctor import examine
    from profkit.report.machine_sections import examination
    from profkit.show.json import dumps, of
    from profkit.show.text import sections

    print("profkit: asking torch, Paddle, CuPy and CUPTI; some seconds", file=sys.stderr)
    findings = examine()
    if args.json:
        print(dumps(of(findings)))
    else:
        print(sections(examination(findings)))
    return ExitCode.DONE
