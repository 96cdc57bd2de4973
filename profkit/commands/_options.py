"""Options and converters that several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profkit.address import to_path
from profkit.errors import UsageError
from profkit.text import safe_text

DEFAULT_RUNS = Path("traces")
"""The folder of runs if neither a flag nor a setting names one."""

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
"""Seconds in each unit that a length of time may end in."""


def add_json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with the unit in each key")


# -- where runs are, and where files go ------------------------------------------------------------


def add_output(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Declare the folder of runs, which `-o` means in every verb."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=DEFAULT_RUNS,
        metavar="FOLDER",
        help="folder of runs (default: %(default)s)",
        **options,
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare a run to read; if none is named, the newest in the folder of runs is read."""
    parser.add_argument(
        "path",
        type=to_path,
        nargs="?",
        metavar="RUN",
        help="folder or address of the run, or its name below --output or the beginning of it, "
        "'last' or 'prev' (default: last)",
    )
    add_output(parser)


def add_write(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-w", "--write", type=Path, metavar="FILE", help=text)


def run_or_newest(run: Path | None, folder: Path, *, with_steps: bool = True) -> Path:
    """Return the named run, or the newest one in the folder of runs, if wanted one with steps."""
    from profkit.trace.folders import find_run, find_runs, newest_run

    if run is not None:
        return find_run(run, folder)

    runs = find_runs(folder)
    if not runs:
        raise UsageError(
            f"no run was named, and there is none in {folder}; "
            "record one with 'profkit run -- COMMAND'"
        )
    if not with_steps:
        return runs[-1]
    newest = newest_run(runs)
    if newest != runs[-1]:
        name = safe_text(runs[-1].name)
        print(f"profkit: {name} has no step, so this is {safe_text(newest.name)}", file=sys.stderr)
    return newest


# -- what is read and recorded ---------------------------------------------------------------------


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler",
        default="",
        metavar="WHERE",
        help="where ranks are read: serial, processes, or the address of a Dask scheduler such as "
        "tcp://host:8786 (default: processes for a large run)",
    )


def add_collect(parser: Any) -> None:
    """Declare what is collected during training; `pass_on_collect` passes it on."""
    parser.add_argument(
        "--collect",
        default="",
        metavar="NAMES",
        help="collectors, such as host,nvml,kernels, or 'none'; 'usual' means those that run by "
        "default: all that work here (see 'profkit doctor')",
    )
    parser.add_argument(
        "--lines",
        default="on",
        choices=("on", "off"),
        help="sample the lines that run, in the loop and in the loader's workers, from a process "
        "outside of the job (default: %(default)s)",
    )
    parser.add_argument(
        "--kernels",
        default="",
        metavar="STEPS",
        help="capture kernels in steps 20:23 (20 to 22), or every:100; off for never (default: two "
        "steps now and then on a GPU, which take 0.1 %% of the job's time at most)",
    )
    parser.add_argument(
        "--kernels-from",
        default="profiler",
        choices=("profiler", "cupti"),
        help="the framework's profiler, or NVIDIA's CUPTI through the package cupti-python "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--operations",
        default="",
        metavar="STEPS",
        help="count the floating-point operations of steps 10:11 (10 alone), for MFU; torch logs a "
        "line when it begins and when it ends",
    )
    parser.add_argument(
        "--memory",
        default="",
        metavar="STEPS",
        help="record what torch's allocator does in steps 10:12, to show what fills the device; a "
        "failed allocation is written without it, too",
    )
    parser.add_argument(
        "--ops",
        action="store_true",
        help="record the operators that launch the kernels; on a CPU they are always recorded",
    )


def pass_on_collect(args: argparse.Namespace) -> None:
    """Check the choice, and set the environment variables in which ranks and jobs find it."""
    from profkit.run import choosing

    choice = choosing.Choice.parse(
        args.collect,
        args.kernels,
        operators=args.ops,
        source=args.kernels_from,
        lines=args.lines,
        counted=args.operations,
        memory=args.memory,
    )
    if choice.windows is not None and choice.source == choosing.CUPTI:
        from profkit.machine import doctor, probes

        found = doctor.cupti(probes.probe("cupti"))
        if found.state == doctor.CANNOT:
            raise UsageError(f"--kernels-from cupti: {found.why}; {found.help or 'leave it out'}")
    os.environ[choosing.COLLECT] = args.collect
    os.environ[choosing.LINES] = args.lines
    os.environ[choosing.WINDOWS] = args.kernels
    os.environ[choosing.SOURCE] = args.kernels_from
    os.environ[choosing.COUNTED] = args.operations
    os.environ[choosing.MEMORY] = args.memory
    os.environ[choosing.OPERATORS] = str(int(args.ops))


LEAST_HANG_S, MOST_HANG_S = 1, 1000 * 3600
"""The limits of --hang-after in seconds."""


def add_hang_after(parser: Any) -> None:
    """Declare when a job counts as hung; `pass_on_hang_after` passes it on."""
    parser.add_argument(
        "--hang-after",
        type=seconds_or_never,
        metavar="TIME",
        help="explain a hang after this time without a step, such as 90 or 5m, and at least 10 "
        "times the usual length of a step; 0 for never (default: 30)",
    )


def pass_on_hang_after(args: argparse.Namespace) -> None:
    """Set the environment variable in which ranks and jobs find the time."""
    from profkit.hangs.status import LIMIT_VARIABLE

    if args.hang_after is not None:
        os.environ[LIMIT_VARIABLE] = str(args.hang_after)


# -- converters ------------------------------------------------------------------------------------


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a converter for whole numbers in a range."""
    allowed = f"at least {least}" if most is None else f"{least} to {most}"

    def convert(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{word}' is not a whole number") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is out of range: {allowed}")
        return value

    return convert


def positive(word: str) -> float:
    """Convert a number above zero."""
    try:
        value = float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{word}' is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a number above zero")
    return value


def duration_s(word: str) -> float:
    """Convert a length of time to seconds: `90`, `15m` or `2h`."""
    scale = SECONDS.get(word[-1:].lower())
    if scale is None:
        return positive(word)
    return positive(word[:-1]) * scale


def seconds_or_never(word: str) -> float:
    """Convert a length of time to seconds; 0 means never.

    The job's ranks look at themselves several times in this time: a tiny one would slow them down.
    """
    with contextlib.suppress(ValueError):
        if float(word) == 0:
            return 0.0
    seconds = duration_s(word)
    if not LEAST_HANG_S <= seconds <= MOST_HANG_S:
        raise argparse.ArgumentTypeError(f"{word} is out of range: 1 to 1000h, or 0 for never")
    return seconds


def count_not_ids(word: str) -> int:
    """Convert a number of GPUs; a list of ids is an error that names `--devices`."""
    if "," in word:
        raise argparse.ArgumentTypeError(
            f"'{word}' is a list of ids, and --gpus is a count; write --devices {word}"
        )
    return whole(1, 1024)(word)


def gpu_ids(word: str) -> str:
    """Convert a list of GPU ids such as `0,2`."""
    ids = [part.strip() for part in word.split(",")]
    if not all(map(str.isdigit, ids)) or len(set(ids)) < len(ids):
        raise argparse.ArgumentTypeError(f"'{word}' is not a list of different GPU ids such as 0,2")
    return ",".join(ids)


def print_broken(kind: str, broken: dict[str, Exception]) -> None:
    """Report each plug-in that cannot be loaded."""
    for name, error in broken.items():
        words = f"{kind} '{safe_text(name)}' cannot be loaded: {safe_text(str(error))}"
        print(f"profkit: {words}", file=sys.stderr)
