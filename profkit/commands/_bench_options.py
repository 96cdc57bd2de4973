"""The options of `profkit bench`, by topic."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profkit.commands._options import duration_s, whole

SWITCHES = ("off", "on", "both")
"""Values of an axis that can be switched; `both` makes two cells."""

LOADERS = ("off", "on", "gpu", "both", "all")
"""Values of the axis of DALI."""

LARGEST = "max"
"""The value of --batch-size that searches the largest batch."""


def add_axes(group: Any) -> None:
    group.add_argument(
        "--framework",
        default="torch",
        metavar="LIST",
        help="torch, paddle, or torch,paddle (default: %(default)s)",
    )
    group.add_argument(
        "--gpus",
        type=several(1, 1024),
        metavar="LIST",
        help="numbers of GPUs of this machine, such as 1,8",
    )
    group.add_argument(
        "--ranks",
        type=several(1, 1024),
        metavar="LIST",
        help="numbers of processes on the CPU, such as 1,2",
    )
    group.add_argument(
        "--batch-size",
        type=batch_sizes,
        metavar="LIST",
        help="samples per step on each rank, such as 128,256; or 'max' for the largest batch that "
        "fits into the memory of the GPUs, which is searched for each cell",
    )
    group.add_argument(
        "--amp",
        choices=SWITCHES,
        default="off",
        help="mixed precision (default: %(default)s)",
    )
    group.add_argument(
        "--dali",
        choices=LOADERS,
        default="off",
        help="decode with NVIDIA DALI: 'on' on the CPU, 'gpu' on the GPU; 'both' compares off and "
        "on, 'all' also gpu (default: %(default)s)",
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats",
        type=whole(0, 1000),
        default=3,
        metavar="N",
        help="runs of each cell; 0 runs nothing and shows what --add names (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=duration_s,
        default="1h",
        metavar="TIME",
        help="end a run that takes longer, and continue with the next cell: 90, 15m or 2h "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=(),
        metavar="RUN",
        help="runs of 'profkit trace' or folders of them that become cells of the table, such as "
        "those of several machines",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="show the published figures of the workload and run nothing",
    )


def several(least: int, most: int | None = None) -> Callable[[str], tuple[int, ...]]:
    """Return a converter for whole numbers with commas between them."""
    one = whole(least, most)

    def convert(word: str) -> tuple[int, ...]:
        return tuple(sorted(set(map(one, word.split(",")))))

    return convert


def batch_sizes(word: str) -> tuple[int, ...] | str:
    """Convert the value of --batch-size."""
    return word if word == LARGEST else several(1)(word)
