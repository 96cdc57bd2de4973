"""Check a run's files.

profkit reads every byte of a run and compares it with the counts and checksums at each table's end.
The exit code is 0 if every row that was written can be read, even if the run ended early, and 3 if
not.
"""

from __future__ import annotations

import argparse

from profkit.commands._options import add_json, add_run, run_or_newest
from profkit.errors import ExitCode
from profkit.vocab import Integrity


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.frame.run_frame import read_device_times
    from profkit.report.machine_sections import verification
    from profkit.show import json, text
    from profkit.trace.integrity import verify
    from profkit.trace.reader import check_folder

    path = run_or_newest(args.path, args.output, with_steps=False)
    check_folder(path)
    found, device_times = verify(path), read_device_times(path)
    if args.json:
        print(json.dumps(json.document(verification(found, device_times))))
    else:
        print(text.sections(verification(found, device_times).sections))
    return ExitCode.UNREADABLE if found.state is Integrity.TORN else ExitCode.DONE
