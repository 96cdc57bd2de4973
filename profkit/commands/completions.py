"""Print the completions for a shell: verbs, options, runs in traces/, and causes.

profkit completions bash > ~/.local/share/bash-completion/completions/profkit
profkit completions zsh  > ~/.zfunc/_profkit
profkit completions fish > ~/.config/fish/completions/profkit.fish
profkit completions tcsh > ~/.profkit.completion.tcsh
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from profkit.errors import ExitCode

SHELLS = ("bash", "zsh", "fish", "tcsh")

RUNS = "echo last; echo prev; ls traces"
"""What a shell runs for the names of runs."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    import shtab

    from profkit.cli import build_parser
    from profkit.explain.titles import TITLES

    parser = build_parser()
    causes = "; echo ".join(TITLES)
    offered = {"RUN": shtab.cmd(RUNS), "CAUSE": shtab.cmd(f"echo {causes}")}
    for action in find_actions(parser):
        if action.metavar in offered:
            action.complete = offered[str(action.metavar)]  # type: ignore[attr-defined]  # shtab's
    print(shtab.complete(parser, shell=args.shell))
    return ExitCode.DONE


def find_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of those of its verbs."""
    for action in parser._actions:  # noqa: SLF001  # argparse tells its arguments only so
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb in action.choices.values():
                yield from find_actions(verb)
