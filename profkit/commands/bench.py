"""Run a matrix of a reference system: what AMP, DALI, GPUs and batch size each change.

  profkit bench resnet50 --gpus 1,8 --amp both --batch-size 128,256 --dali both
  profkit bench resnet50 --ranks 1,2 --batch-size 4,8    ranks on the CPU
  profkit bench resnet50 --framework torch,paddle        both frameworks in one table
  profkit bench resnet50 --gpus 1 --batch-size max       the largest batch that fits
  profkit bench resnet50 --published                     what others measured; nothing is run

Each cell runs as 'profkit trace' does, --repeats times, interleaved with the other cells. After an
interruption, the same command continues and keeps finished runs. If a cell fails or exceeds
--time-limit, the table shows '-' and the reason, and the exit code is 1. profkit writes the results
to the output folder as Markdown, CSV and JSON rows.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from profkit.commands._bench_options import LARGEST, add_axes, add_runs
from profkit.commands._options import DEFAULT_RUNS, add_json
from profkit.commands._preflight import check_machine
from profkit.commands._training_options import OPTIONS, add_training_options
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.text import safe_text

if TYPE_CHECKING:
    from profkit.analysis.matrix import Setting
    from profkit.bench.read import Benched
    from profkit.bench.run import Plan, Progress
    from profkit.workloads.base import Workload

RESULTS = ("results.md", "results.csv", "results.jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="its name; 'profkit workloads' lists them"
    )
    add_axes(parser.add_argument_group("varied settings"))
    add_training_options(parser.add_argument_group("settings of all cells"), *OPTIONS)
    add_runs(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the runs and results (default: traces/bench-WORKLOAD-FRAMEWORK)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from profkit.bench.added import check_machines, find_added
    from profkit.bench.read import read_matrix, read_published
    from profkit.plugins import WORKLOADS

    workload = WORKLOADS.load(args.workload)
    if args.published:
        published = read_published(args.workload, workload.title)
        if not published.published:
            words = f"profkit knows of no published figures of {workload.title}"
            print(words, file=sys.stderr)
        _print(published, as_json=args.json)
        return ExitCode.DONE
    added, scale = find_added(args.add, args.workload)
    names = "-".join(dict.fromkeys(args.framework.split(",")))
    folder = args.output or DEFAULT_RUNS / f"bench-{args.workload}-{names}"
    plan = _plan(args, workload, folder, scale)
    check_machines(added, plan.settings, plan.scale)
    for run in itertools.chain(*added.values()):
        if args.repeats and run.parent == folder.resolve():
            raise UsageError(f"--add: {safe_text(str(run))} is in the output folder already")
    progress = _measure(plan, folder)
    view = read_matrix(plan, workload.title, progress, added)
    _write_results(view, folder)
    _print(view, as_json=args.json)
    names = ", ".join(RESULTS)
    print(
        f"written to {safe_text(str(folder))}: {names}; "
        "each run is a folder there, next to its log",
        file=sys.stderr,
    )
    return ExitCode.UNFINISHED if progress.failures else ExitCode.DONE


# -- the plan --------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace, workload: Workload, folder: Path, scale_of_added: str) -> Plan:
    from profkit.bench.largest import with_largest_batches
    from profkit.bench.run import Plan
    from profkit.workloads.base import Settings
    from profkit.workloads.training import prepare

    fixed = (args.repeats, args.seed, _shared(args), args.time_limit)
    if not args.repeats:
        if not scale_of_added:
            raise UsageError("--repeats 0 runs nothing, and --add names no runs to show")
        return Plan(args.workload, scale_of_added, (), *fixed)
    scale, counts = _scale(args)
    check_machine(
        args.framework.split(","),
        gpus=max(counts) if scale == "--gpus" else None,
        on_cpu=scale != "--gpus",
        amp=args.amp != "off",
        dali=args.dali != "off",
    )
    if scale_of_added not in {"", scale}:
        raise UsageError(f"--add: its runs have {scale_of_added}, and this matrix has {scale}")
    usual = workload.defaults.reduced_batch_size
    if scale == "--gpus":
        usual = workload.defaults.batch_size
    is_search = args.batch_size == LARGEST
    batches = (usual,) if is_search or not args.batch_size else args.batch_size
    cells: list[Setting] = []
    for framework in dict.fromkeys(args.framework.split(",")):
        settings = Settings(framework=framework, data=args.data)
        prepare.check(workload, settings, on_gpu=scale == "--gpus")
        prepare.find_data(workload, settings)
        cells += _cells(args, framework, counts, batches)
    plan = Plan(args.workload, scale, tuple(cells), *fixed)
    if not is_search:
        return plan
    if scale != "--gpus":
        raise UsageError(
            "--batch-size max: on a CPU there is no device memory to search; "
            "give sizes, such as 4,8"
        )
    return with_largest_batches(plan, folder, _report_progress)


def _scale(args: argparse.Namespace) -> tuple[str, tuple[int, ...]]:
    """Return the option that scales the cells, and its values.

    GPUs are used if there are any, or if they were asked for: then the CPU is never used instead.
    """
    from profkit.commands._places import check_gpus, visible_gpus

    if args.gpus and args.ranks:
        raise UsageError("--ranks trains on the CPU and --gpus on GPUs: give one of them")
    if args.gpus:
        check_gpus(max(args.gpus))
        return "--gpus", args.gpus
    if args.ranks:
        return "--ranks", args.ranks
    if visible_gpus()[0]:
        return "--gpus", (1,)
    return "--ranks", (1,)


def _cells(
    args: argparse.Namespace, framework: str, counts: tuple[int, ...], batches: tuple[int, ...]
) -> list[Setting]:
    from profkit.analysis.matrix import Setting
    from profkit.bench.run import AMP, DALI, DALI_GPU, FULL

    loader = f"{framework} DataLoader"
    if args.data == "synthetic":
        loader = "none"
    precisions = {"off": (FULL,), "on": (AMP,), "both": (FULL, AMP)}[args.amp]
    loaders = {
        "off": (loader,),
        "on": (DALI,),
        "gpu": (DALI_GPU,),
        "both": (loader, DALI),
        "all": (loader, DALI, DALI_GPU),
    }[args.dali]
    cells = []
    for gpus, batch, precision, decoder in itertools.product(counts, batches, precisions, loaders):
        cells.append(Setting(gpus, precision, batch, decoder, framework))
    return cells


def _shared(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the words that every cell's command has, in one order, to recognise a matrix."""
    data = args.data
    if data not in {"generated", "synthetic"}:
        data = str(Path(data).absolute())
    named = {
        "--steps": args.steps,
        "--warmup": args.warmup,
        "--image-size": args.image_size,
        "--workers": args.workers,
        "--data": data,
        "--seed": args.seed,
    }
    words = []
    for name, value in named.items():
        if value is not None:
            words += [name, str(value)]
    if args.channels_last:
        words.append("--channels-last")
    return tuple(words)


# -- runs and results ------------------------------------------------------------------------------


def _measure(plan: Plan, folder: Path) -> Progress:
    from profkit.bench.run import claim, run_matrix

    try:
        with claim(plan, folder):
            return run_matrix(plan, folder, _report_progress)
    except KeyboardInterrupt:
        print(
            f"\ninterrupted; finished runs are in {safe_text(str(folder))}, "
            "and the same command continues from there",
            file=sys.stderr,
        )
        raise


def _report_progress(words: str) -> None:
    line, newline, _ = words.partition("\n")
    print(safe_text(line), end=newline, file=sys.stderr, flush=True)


def _write_results(view: Benched, folder: Path) -> None:
    from profkit.report import bench_rows
    from profkit.report.bench_document import bench
    from profkit.show import markdown

    results = (
        markdown.sections(bench(view).sections) + "\n",
        bench_rows.as_csv(view),
        bench_rows.as_json_rows(view),
    )
    try:
        for name, result in zip(RESULTS, results, strict=True):
            (folder / name).write_text(result, encoding="utf-8")
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(folder))}: the results cannot be written ({error.strerror}); "
            "its runs are complete"
        ) from error


def _print(view: Benched, *, as_json: bool) -> None:
    from profkit.report.bench_document import bench
    from profkit.show import text
    from profkit.show.json import document, dumps

    print(dumps(document(bench(view))) if as_json else text.sections(bench(view).sections))
