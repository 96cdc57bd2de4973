"""Explain why a job hangs or hung: which rank the others wait for, and at which line.

The verdict comes from the run's files alone, also after every rank was killed. If the ranks of
several hosts wrote into different folders, copy their 'status' folders into one run first. Exit
code 0: the job did not hang. 12: it did. 11: inconclusive.
"""

from __future__ import annotations

import argparse

from profkit.commands._options import add_json, add_run, run_or_newest
from profkit.errors import ExitCode


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.hangs.account import HUNG, UNKNOWN, read_account
    from profkit.show.json import dumps, of
    from profkit.trace.reader import check_folder

    path = run_or_newest(args.path, args.output, with_steps=False)
    check_folder(path)
    account = read_account(path)
    if args.json:
        print(dumps(of(account)))
    else:
        print("\n".join(account.lines()))
    if account.state == HUNG:
        return ExitCode.HUNG
    return ExitCode.NOT_JUDGED if account.state == UNKNOWN else ExitCode.DONE
