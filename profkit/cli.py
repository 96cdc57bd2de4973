"""The command line: finds the verb, hands it its arguments, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from profkit import __version__
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.text import did_you_mean, safe_text

VERBS = (
    "trace",
    "run",
    "report",
    "explain",
    "bench",
    "tui",
    "import",
    "export",
    "verify",
    "doctor",
    "ceilings",
    "workloads",
    "schema",
    "completions",
)
"""In the order of `--help`; each is a module of `profkit.commands`, with an underscore after it where Python has the word."""


class Command(Protocol):
    """A module of `profkit.commands`: its docstring is its help, imports that cost stand inside `run`."""

    __doc__: str | None

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it, and return the exit code."""


class Parser(argparse.ArgumentParser):
    """Reports what is wrong as a `UsageError`, so that it is one line like every other error."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def build_parser(verbs: Sequence[str] = VERBS) -> Parser:
    """The parser with the named verbs in it; each one's module is imported, none of them imports much."""
    parser = Parser(
        prog="profkit",
        description="Tells where training throughput went.",
        epilog="'profkit VERB --help' tells more of each.",
    )
    parser.add_argument("--version", action="version", version=f"profkit {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in verbs:
        add_verb(subparsers, verb)
    return parser


def add_verb(subparsers: Any, verb: str) -> Parser:
    command = load_command(verb)
    summary = (command.__doc__ or "").strip()
    parser: Parser = subparsers.add_parser(
        verb, help=summary.partition("\n")[0].rstrip("."), description=summary
    )
    command.configure(parser)
    parser.set_defaults(run=command.run)
    return parser


def load_command(verb: str) -> Command:
    module: Any = importlib.import_module(
        f"profkit.commands.{verb + '_' * keyword.iskeyword(verb)}"
    )
    return module  # type: ignore[no-any-return]  # a module stands for the protocol


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments in their final values: flags over environment over files over defaults."""
    verb = arguments[0] if arguments else ""
    if verb not in VERBS:
        return _parse_without_verb(arguments)
    parser = Parser(prog="profkit")
    subparsers = parser.add_subparsers(dest="verb")
    verb_parser = add_verb(subparsers, verb)
    if not {"-h", "--help"} & set(arguments):
        from profkit.config import apply_settings, from_process

        apply_settings(verb_parser, verb, *from_process())
    return parser.parse_args(arguments)


def _parse_without_verb(arguments: Sequence[str]) -> argparse.Namespace:
    if arguments and not arguments[0].startswith("-"):
        raise UsageError(
            f"unknown verb '{safe_text(arguments[0])}'{did_you_mean(arguments[0], VERBS)} (see 'profkit --help')"
        )
    parser = build_parser()
    args = parser.parse_args(arguments)
    parser.print_help()
    raise SystemExit(ExitCode.USAGE if args.verb is None else ExitCode.DONE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        args = parse(words)
        args.words = words
        code = int(args.run(args))
        sys.stdout.flush()
    except ProfkitError as error:
        print(f"profkit: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    return code
