"""Run a matrix of a reference system, and tell what AMP, DALI, GPUs and batches each give.

  profkit bench resnet50 --gpus 1,8 --amp both --batch-size 128,256 --dali both
  profkit bench resnet50 --ranks 1,2 --batch-size 4,8    ranks on the CPU
  profkit bench resnet50 --published                     what others measured; nothing is run

Cells run as 'profkit trace' runs them, interleaved, --repeats times. The same command again goes on
where it was interrupted: finished runs are kept. A cell that fails is '-' with its reason, and the
exit code is 1. Results are written to the output folder as Markdown, CSV and JSON rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profkit.commands._options import add_json, whole
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.analysis.matrix import Setting
    from profkit.bench.read import Benched
    from profkit.bench.run import Plan, Progress
    from profkit.workloads.base import Settings, Workload

SWITCHED = {"off": (False,), "on": (True,), "both": (False, True)}
RESULTS = ("results.md", "results.csv", "results.jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="which one; 'profkit workloads' lists them"
    )
    _add_axes(parser.add_argument_group("what is varied"))
    _add_shared(parser.add_argument_group("the same in all cells"))
    parser.add_argument(
        "--repeats",
        type=whole(1, 1000),
        default=3,
        metavar="N",
        help="how often each cell is run (default: %(default)s)",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="show what was published of the workload, and run nothing",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where the matrix is kept (default: traces/bench-WORKLOAD-FRAMEWORK)",
    )
    add_json(parser)


def _add_axes(group: Any) -> None:
    group.add_argument(
        "--gpus",
        type=several(1, 1024),
        metavar="LIST",
        help="numbers of GPUs of this machine, as in 1,8",
    )
    group.add_argument(
        "--ranks",
        type=several(1, 1024),
        metavar="LIST",
        help="numbers of processes on the CPU, as in 1,2",
    )
    group.add_argument(
        "--batch-size",
        type=several(1),
        metavar="LIST",
        help="samples a step on each rank, as in 128,256",
    )
    group.add_argument(
        "--amp",
        choices=tuple(SWITCHED),
        default="off",
        help="mixed precision (default: %(default)s)",
    )
    group.add_argument(
        "--dali",
        choices=tuple(SWITCHED),
        default="off",
        help="decode with NVIDIA DALI (default: %(default)s)",
    )


def _add_shared(group: Any) -> None:
    group.add_argument(
        "--framework",
        default="torch",
        metavar="NAME",
        help="torch or paddle (default: %(default)s)",
    )
    group.add_argument("--steps", type=whole(1), metavar="N", help="how many steps to train")
    group.add_argument(
        "--warmup", type=whole(0), metavar="N", help="how many steps to leave out of the figures"
    )
    group.add_argument(
        "--image-size",
        type=whole(32, 4096),
        metavar="PX",
        help="the side by which the system's images are named",
    )
    group.add_argument(
        "--workers",
        type=whole(0, 512),
        metavar="N",
        help="loader processes (DALI: threads) of each rank",
    )
    group.add_argument("--channels-last", action="store_true", help="images as NHWC in memory")
    group.add_argument(
        "--data",
        default="generated",
        metavar="WHAT",
        help="'generated', 'synthetic', or the folder of the data set (default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        type=whole(0),
        default=0,
        metavar="N",
        help="of the training and of the order of the cells (default: %(default)s)",
    )


def several(least: int, most: int | None = None) -> Callable[[str], tuple[int, ...]]:
    """A converter for whole numbers with commas between them."""
    one = whole(least, most)

    def convert(word: str) -> tuple[int, ...]:
        return tuple(sorted({one(part.strip()) for part in word.split(",")}))

    return convert


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS

    workload = WORKLOADS.load(args.workload)
    if args.published:
        return _show_published(args, workload)
    plan = _plan(args, workload)
    folder = args.output or Path("traces") / f"bench-{args.workload}-{args.framework}"
    progress = _measure(plan, folder)
    return _show(args, plan, workload, progress, folder)


def _show_published(args: argparse.Namespace, workload: Workload) -> int:
    from profkit.bench.read import read_published

    view = read_published(args.workload, workload.title)
    if not view.published:
        print(f"nothing was published of {workload.title} that profkit knows of", file=sys.stderr)
    _print(view, as_json=args.json)
    return ExitCode.DONE


# -- the plan --------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace, workload: Workload) -> Plan:
    from profkit.bench.run import Plan
    from profkit.workloads.training import prepare as _prepare

    scale, counts = _scale(args)
    settings = _settings(args)
    _prepare.check(workload, settings, on_gpu=scale == "--gpus")
    _prepare.find_data(workload, settings)
    usual = (
        workload.defaults.batch_size if scale == "--gpus" else workload.defaults.reduced_batch_size
    )
    cells = _cells(args, counts, args.batch_size or (usual,))
    return Plan(args.workload, args.framework, scale, cells, args.repeats, args.seed, _shared(args))


def _scale(args: argparse.Namespace) -> tuple[str, tuple[int, ...]]:
    """GPUs where they were asked for, or where there are some; the CPU otherwise, and never instead of a GPU that was asked for."""
    from profkit.commands._places import check_gpus, visible_gpus

    if args.gpus and args.ranks:
        raise UsageError("--ranks trains on the CPU and --gpus on GPUs: give one of them")
    if args.gpus:
        check_gpus(max(args.gpus))
        return "--gpus", args.gpus
    if args.ranks:
        return "--ranks", args.ranks
    return ("--gpus" if visible_gpus()[0] else "--ranks"), (1,)


def _settings(args: argparse.Namespace) -> Settings:
    from profkit.workloads.base import Settings

    return Settings(framework=args.framework, data=args.data)


def _cells(
    args: argparse.Namespace, counts: tuple[int, ...], batches: tuple[int, ...]
) -> tuple[Setting, ...]:
    from profkit.analysis.matrix import Setting
    from profkit.bench.run import AMP, DALI, FULL

    own = "none" if args.data == "synthetic" else f"{args.framework} DataLoader"
    return tuple(
        Setting(gpus, AMP if mixed else FULL, batch, DALI if dali else own)
        for gpus in counts
        for batch in batches
        for mixed in SWITCHED[args.amp]
        for dali in SWITCHED[args.dali]
    )


def _shared(args: argparse.Namespace) -> tuple[str, ...]:
    """The words that every cell's command has, in one order, so that a matrix is known again."""
    named = {
        "--steps": args.steps,
        "--warmup": args.warmup,
        "--image-size": args.image_size,
        "--workers": args.workers,
        "--data": _absolute(args.data),
        "--seed": args.seed,
    }
    words = [
        word for name, value in named.items() if value is not None for word in (name, str(value))
    ]
    return (*words, *["--channels-last"] * args.channels_last)


def _absolute(data: str) -> str:
    return data if data in {"generated", "synthetic"} else str(Path(data).absolute())


# -- runs and results ------------------------------------------------------------------------------


def _measure(plan: Plan, folder: Path) -> Progress:
    from profkit.bench.run import claim, run_matrix

    try:
        with claim(plan, folder):
            return run_matrix(plan, folder, _tell)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted; finished runs are in {safe_text(str(folder))}, and the same command goes on from there",
            file=sys.stderr,
        )
        raise


def _tell(words: str) -> None:
    print(
        safe_text(words.rstrip("\n")), end="\n" * words.endswith("\n"), file=sys.stderr, flush=True
    )


def _show(
    args: argparse.Namespace, plan: Plan, workload: Workload, progress: Progress, folder: Path
) -> int:
    from profkit.bench.read import read_matrix
    from profkit.bench.run import exit_code
    from profkit.report import bench_text

    view = read_matrix(plan, workload.title, progress)
    shapes = (bench_text.as_markdown, bench_text.as_csv, bench_text.as_json_rows)
    try:
        for name, shape in zip(RESULTS, shapes, strict=True):
            (folder / name).write_text(shape(view), encoding="utf-8")
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(folder))}: the results cannot be written ({error.strerror}); its runs are whole"
        ) from error
    _print(view, as_json=args.json)
    print(
        f"written to {safe_text(str(folder))}: {', '.join(RESULTS)}; each run is a folder there, beside its log",
        file=sys.stderr,
    )
    return exit_code(progress)


def _print(view: Benched, *, as_json: bool) -> None:
    from profkit.report import bench_text
    from profkit.report.as_json import dumps

    print(dumps(bench_text.as_json(view)) if as_json else bench_text.as_text(view))
