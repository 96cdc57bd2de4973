"""Options and converters that several verbs share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profkit.errors import UsageError


def add_json(parser: Any) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with the unit in each key")


def add_output(parser: argparse.ArgumentParser, *, short: bool = True) -> None:
    """`short` gives it the letter `-o`, unless a verb has a file of its own to write."""
    parser.add_argument(
        *(["-o"] if short else []),
        "--output",
        type=Path,
        default=Path("traces"),
        metavar="FOLDER",
        help="where runs are kept (default: %(default)s)",
    )


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scheduler",
        default="serial",
        metavar="WHERE",
        help="where ranks are read: serial, threads, or a Dask scheduler, as in tcp://host:8786 (default: %(default)s)",
    )


def add_collect(parser: Any) -> None:
    """What is collected beside the loop; `pass_on` hands it to the processes that train."""
    parser.add_argument(
        "--collect",
        default="",
        metavar="NAMES",
        help="collectors, as in host,nvml,kernels; 'none' for none (default: all that work here; see 'profkit doctor')",
    )
    parser.add_argument(
        "--kernels",
        default="",
        metavar="STEPS",
        help="capture kernels in steps 20:23 (20 to 22), or every:100 (default: in none)",
    )
    parser.add_argument(
        "--kernels-from",
        default="profiler",
        choices=("profiler", "cupti"),
        help="the framework's profiler, or NVIDIA's CUPTI through the package cupti-python (default: %(default)s)",
    )
    parser.add_argument(
        "--ops",
        action="store_true",
        help="name the operators that launch the kernels; on the CPU they are always there",
    )


def pass_on_collect(args: argparse.Namespace) -> None:
    """Check what was chosen, and leave it where ranks and jobs find it."""
    from profkit.run import collecting

    choice = collecting.Choice.parse(
        args.collect, args.kernels, operators=args.ops, source=args.kernels_from
    )
    if choice.windows is not None and choice.source == collecting.CUPTI:
        _check_cupti()
    chosen = {
        collecting.COLLECT: args.collect,
        collecting.WINDOWS: args.kernels,
        collecting.SOURCE: args.kernels_from,
    }
    chosen[collecting.OPERATORS] = str(int(args.ops))
    os.environ.update(chosen)


def _check_cupti() -> None:
    """What is asked for and cannot be had is refused before anything is started."""
    from profkit.machine import doctor

    found = doctor.cupti()
    if found.state == doctor.CANNOT:
        raise UsageError(f"--kernels-from cupti: {found.why}; {found.help or 'leave it out'}")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A converter for whole numbers in a range."""

    def convert(word: str) -> int:
        try:
            value = int(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{word}' is not a whole number") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{value} is out of range: {_range(least, most)}")
        return value

    return convert


def _range(least: int, most: int | None) -> str:
    return f"at least {least}" if most is None else f"{least} to {most}"


def positive(word: str) -> float:
    """A converter for numbers above zero."""
    try:
        value = float(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{word}' is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a number above zero")
    return value


def duration_s(word: str) -> float:
    """A converter for lengths of time: seconds, or `15m`, or `2h`."""
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(word[-1:].lower())
    return positive(word[:-1] if scale else word) * (scale or 1.0)


def count_not_ids(word: str) -> int:
    """A converter for a number of GPUs; a list of ids, which Paddle's own option of the name takes, is told where it belongs."""
    if "," in word:
        raise argparse.ArgumentTypeError(
            f"'{word}' is a list of ids, and --gpus is a count; write --devices {word}"
        )
    return whole(1, 1024)(word)


def gpu_ids(word: str) -> str:
    """A converter for ids of GPUs, as in `0,2`."""
    ids = [part.strip() for part in word.split(",")]
    if not all(part.isdigit() for part in ids) or len(set(ids)) < len(ids):
        raise argparse.ArgumentTypeError(f"'{word}' is no list of different GPU ids, such as 0,2")
    return ",".join(ids)


def run_or_newest(run: Path | None, folder: Path) -> Path:
    """The run that was named, else the newest one in the folder of runs."""
    if run is not None:
        return run
    from profkit.trace.reader import find_runs

    runs = find_runs(folder)
    if not runs:
        raise UsageError(
            f"no run was named, and there is none in {folder}; make one with 'profkit trace WORKLOAD'"
        )
    return runs[-1]


def add_run(parser: argparse.ArgumentParser, *, short: bool = True) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="the run's folder (default: the newest run below --output)",
    )
    add_output(parser, short=short)
