"""Print the completions for a shell.

profkit completions bash > ~/.local/share/bash-completion/completions/profkit
profkit completions zsh  > ~/.zfunc/_profkit
profkit completions tcsh > ~/.profkit.completion.tcsh
"""

from __future__ import annotations

import argparse

from profkit.errors import ExitCode

SHELLS = ("bash", "zsh", "tcsh")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    import shtab

    from profkit.cli import build_parser

    print(shtab.complete(build_parser(), shell=args.shell))
    return ExitCode.DONE
