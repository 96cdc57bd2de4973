"""Check a run's files, or what a text states about runs.

profkit reads every byte of a run and compares it with the counts and checksums at each table's end.
The exit code is 0 if every row that was written can be read, even if the run ended early, and 3 if
not.

'profkit verify --text REPORT.md' checks a report or README instead: the cards, batches, precisions,
losses and throughputs that its words and tables state, against the commands in it and against the
logs that it links to, those next to it, or those given with --log. Exit code 10 means that a
statement contradicts a command or a log. An ambiguous statement is inconclusive.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from profkit.commands._options import add_json, add_run, run_or_newest
from profkit.errors import ExitCode, UsageError
from profkit.text import safe_text
from profkit.vocab import Integrity


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="check this Markdown file instead of a run"
    )
    parser.add_argument(
        "--log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --text: a log of the text's runs; may be repeated",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.analysis.device_times import read_device_times
    from profkit.report import as_json, as_text, machine_sections
    from profkit.trace.integrity import verify
    from profkit.trace.reader import check_folder

    if args.text is not None:
        return _check_text(args)
    if args.log:
        raise UsageError("--log names a log for --text; to read a log use 'profkit import'")
    path = run_or_newest(args.path, args.output)
    check_folder(path)
    found, device_times = verify(path), read_device_times(path)
    if args.json:
        print(as_json.dumps(as_json.verification(found, device_times)))
    else:
        print(as_text.sections(machine_sections.verification(found, device_times)))
    return ExitCode.UNREADABLE if found.state is Integrity.TORN else ExitCode.DONE


def _check_text(args: argparse.Namespace) -> int:
    from profkit.importers.texts.check import check_text
    from profkit.importers.texts.values import Outcome
    from profkit.report import as_json, as_text, text_sections

    if args.path is not None:
        raise UsageError("--text checks a text; give its logs with --log, and no run")
    for log in args.log:
        if not log.is_file():
            why = "not a file" if log.exists() else "there is no such file"
            raise UsageError(f"--log {safe_text(str(log))}: {why}")
    found = check_text(args.text, args.log)
    if args.json:
        print(as_json.dumps(text_sections.as_json(found)))
    else:
        print(as_text.sections(text_sections.checked(found)))
    return ExitCode.REGRESSION if found.of(Outcome.CONTRADICTS) else ExitCode.DONE
