"""The command line: find the verb, pass it its arguments, and turn errors into exit codes."""

from __future__ import annotations

import argparse
import functools
import importlib
import keyword
import os
import sys

from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.version import __version__

TYPE_CHECKING = False  # importing typing would cost every command 6 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, Protocol

    class Command(Protocol):
        """A module of `profkit.commands`: its docstring is its help; `run` does slow imports."""

        __doc__: str | None

        def configure(self, parser: argparse.ArgumentParser) -> None:
            """Declare the arguments."""

        def run(self, args: argparse.Namespace) -> int:
            """Run the verb and return the exit code; `args.words` is the whole command line."""


GROUPS = {
    "your job": ("run", "report", "explain", "whatif", "why"),
    "look closer": ("tui", "sql", "history", "import", "verify"),
    "monitor and share": ("export", "mcp", "completions", "schema"),
    "machine and reference systems": ("doctor", "ceilings", "trace", "bench", "workloads"),
}
VERBS = tuple(verb for group in GROUPS.values() for verb in group)
"""The verbs in the order of `--help`; each is a module of `profkit.commands`."""

OTHER_WORDS = {
    **dict.fromkeys(("compare", "diff"), "explain"),
    **dict.fromkeys(("profile", "record", "attach"), "run"),
    **dict.fromkeys(("show", "summary", "stats"), "report"),
    **dict.fromkeys(("predict", "simulate"), "whatif"),
    **dict.fromkeys(("ui", "view", "open"), "tui"),
    **dict.fromkeys(("hang", "stuck"), "why"),
}
"""What other tools call the verbs."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors as `UsageError`, in one line like every other error."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see '{self.prog} --help')")


def build_parser(verbs: Sequence[str] = VERBS) -> Parser:
    """Return a parser with these verbs. It imports their modules, which import little."""
    parser = build_overview()
    subparsers = parser.add_subparsers(prog="profkit", dest="verb")
    for verb in verbs:
        add_verb(subparsers, verb)
    return parser


def build_overview() -> Parser:
    """Return a parser that only lists the verbs. It imports none of their modules."""
    lines = []
    for group, verbs in GROUPS.items():
        lines += [f"{group}:", *(f"  {verb:<12}{_first_line(verb)}" for verb in verbs), ""]
    parser = Parser(
        prog="profkit",
        usage="profkit [-h] [--version] VERB ...",
        description=(
            "Show where training throughput goes.\n\n"
            "  profkit run -- python train.py    record a job of your own, unchanged\n"
            "  profkit explain prev last         say why the last two runs differ"
        ),
        epilog="\n".join([*lines, "'profkit VERB --help' shows more about each verb."]),
        # No line is folded, and without a width argparse loads what asks the terminal for it.
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, width=100),
    )
    parser.add_argument("--version", action="version", version=f"profkit {__version__}")
    return parser


def add_verb(subparsers: Any, verb: str) -> Parser:
    command = load_command(verb)
    summary = (command.__doc__ or "").strip()
    first_line = summary.partition("\n")[0].rstrip(".")
    parser: Parser = subparsers.add_parser(verb, help=first_line, description=summary)
    command.configure(parser)
    parser.set_defaults(run=command.run)
    return parser


def load_command(verb: str) -> Command:
    """Import the verb's module."""
    module: Any = importlib.import_module(f"profkit.commands.{_module_of(verb)}")
    return module  # type: ignore[no-any-return]  # a module implements the protocol


def _module_of(verb: str) -> str:
    """Return the name of the verb's module; a keyword of Python has a trailing underscore."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb


def _first_line(verb: str) -> str:
    """Read the first line of the help of a verb, without its full stop."""
    path = os.path.join(os.path.dirname(__file__), "commands", f"{_module_of(verb)}.py")
    with open(path, encoding="utf-8") as module:
        return module.readline().strip('".\n')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the final values: flags win over environment, files and defaults, in this order."""
    verb = ""
    if arguments:
        verb = arguments[0]
    if verb not in VERBS:
        if verb and not verb.startswith("-"):
            import difflib

            from profkit.text import safe_text

            near = difflib.get_close_matches(verb, (*VERBS, *OTHER_WORDS), n=1, cutoff=0.5)
            meant = ""
            if near:
                meant = f"; did you mean '{OTHER_WORDS.get(near[0], near[0])}'?"
            raise UsageError(f"unknown verb '{safe_text(verb)}'{meant} (see 'profkit --help')")
        parser = build_overview()
        parser.parse_args(arguments)
        parser.print_help()
        raise SystemExit(ExitCode.USAGE)
    parser = Parser(prog="profkit")
    subparsers = parser.add_subparsers(dest="verb")
    verb_parser = add_verb(subparsers, verb)
    if not {"-h", "--help"} & set(arguments):
        from profkit.config import apply_settings, from_process

        apply_settings(verb_parser, verb, *from_process())
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        args = parse(words)
        args.words = words
        if arguments is None:
            from profkit.own_process import claim_process

            claim_process()
        code = int(args.run(args))
        sys.stdout.flush()
    except ProfkitError as error:
        from profkit.text import without_password

        print(f"profkit: {without_password(str(error))}", file=sys.stderr)
        return int(error.exit_code)
    except PermissionError as error:
        if error.filename is None:
            raise
        from profkit.text import safe_text

        remedy = "have its owner share it, or copy it"
        print(
            f"profkit: {safe_text(str(error.filename))}: no permission; {remedy}", file=sys.stderr
        )
        return int(ExitCode.UNREADABLE)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.DONE)
    return code
