"""Run a reference system, time every step, and show where the time went.

  profkit trace resnet50
  profkit trace psenet --framework paddle --batch-size 4 --steps 50
  profkit trace resnet50 --ranks 2                    two processes on the CPU
  profkit trace mask_rcnn --gpus 8 --amp              eight GPUs of this machine
  profkit trace tsm --gpus 8 --nnodes 4 --node-rank 0 --rdzv-endpoint node0:29500
  srun profkit trace hrnet_w18                        ranks as Slurm starts them

The run is kept below the output folder. Ctrl-C ends it early; what was recorded stays readable.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from profkit.commands._options import add_collect, add_json, add_output, count_not_ids, duration_s, gpu_ids, pass_on_collect, positive, whole
from profkit.errors import ExitCode, ProfkitError, UsageError
from profkit.text import plural, safe_text

if TYPE_CHECKING:
    from profkit.instrument.frameworks._base import Place
    from profkit.ranks import Team
    from profkit.trace import RunManifest
    from profkit.workloads._base import Outcome, Settings, Workload
    from profkit.workloads._prepare import ReadyJob, Seat


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help="which one; 'profkit workloads' lists them")
    _add_training(parser.add_argument_group("training"))
    _add_data(parser.add_argument_group("data"))
    _add_scale(parser.add_argument_group("scale"))
    _add_end(parser.add_argument_group("end"))
    add_collect(parser.add_argument_group("collected beside the loop"))
    add_output(parser)
    add_json(parser)


def _add_training(group: Any) -> None:
    group.add_argument("--framework", default="torch", metavar="NAME", help="torch or paddle (default: %(default)s)")
    group.add_argument("--batch-size", type=whole(1), metavar="N", help="samples a step on each rank")
    group.add_argument("--image-size", type=whole(32, 4096), metavar="PX", help="the side by which the system's images are named")
    group.add_argument("--lr", type=positive, metavar="RATE", help="learning rate (default: the published one, scaled to the global batch)")
    group.add_argument(
        "--amp",
        nargs="?",
        const="auto",
        default="",
        choices=("auto", "bf16", "fp16", "O1", "O2"),
        help="mixed precision: fp16 with a gradient scaler on a GPU, bf16 on a CPU; Paddle's level O1 or O2",
    )
    group.add_argument("--channels-last", action="store_true", help="images as NHWC in memory")
    group.add_argument("--compile", action="store_true", help="compile the model first")
    group.add_argument("--seed", type=whole(0), default=0, metavar="N", help="the same seed gives the same losses (default: %(default)s)")


def _add_data(group: Any) -> None:
    group.add_argument(
        "--data",
        default="generated",
        metavar="WHAT",
        help="'generated'; 'synthetic', for tensors without any input pipeline; or the folder of the real data set (default: %(default)s)",
    )
    group.add_argument("--workers", type=whole(0, 512), metavar="N", help="loader processes (DALI: threads) of each rank; 0 loads in the training process")
    group.add_argument("--prefetch", type=whole(1, 64), metavar="N", help="batches that each worker makes ahead (default: 2)")
    group.add_argument("--pin", action=argparse.BooleanOptionalAction, help="batches in pinned memory (default: on a GPU)")
    group.add_argument("--dali", action="store_true", help="decode with NVIDIA DALI, on the CPU")
    group.add_argument(
        "--bad-samples",
        default="error",
        choices=("error", "skip", "pad"),
        help="of an image that is broken or missing: end, take the next sample, or fill in grey (default: %(default)s)",
    )


def _add_scale(group: Any) -> None:
    group.add_argument("--gpus", type=count_not_ids, metavar="N", help="how many GPUs of this machine (a count; ids go into --devices)")
    group.add_argument("--devices", type=gpu_ids, metavar="IDS", help="which GPUs, as in 0,2")
    group.add_argument("--ranks", type=whole(1, 1024), metavar="N", help="processes on the CPU, over gloo")
    group.add_argument("--nnodes", type=whole(1, 4096), default=1, metavar="N", help="machines that take part (default: %(default)s)")
    group.add_argument("--node-rank", type=whole(0, 4095), default=0, metavar="N", help="which of them this is, from 0")
    group.add_argument("--rdzv-endpoint", default="", metavar="HOST:PORT", help="where all ranks meet, on the machine of --node-rank 0")


def _add_end(group: Any) -> None:
    group.add_argument("--steps", type=whole(1), metavar="N", help="how many steps to train")
    group.add_argument("--epochs", type=whole(1), metavar="N", help="how many epochs to train, where --steps is not given")
    group.add_argument("--warmup", type=whole(0), metavar="N", help="how many steps to leave out of the figures")
    group.add_argument("--until", default="", metavar="TARGET", help="stop at loss<0.05, or at loss<0.3x, a share of the first steps' loss; means of 10 steps")
    group.add_argument("--max-time", type=duration_s, metavar="TIME", help="stop after 90, 15m or 2h")
    group.add_argument("--nan", default="stop", choices=("stop", "continue"), help="when the loss is no number any more (default: %(default)s)")
    group.add_argument("--evaluate", action="store_true", help="score the model on the validation set at the end, and after each epoch of --epochs")


def run(args: argparse.Namespace) -> int:
    from profkit.plugins import WORKLOADS
    from profkit.workloads._base import Settings
    from profkit.workloads._loop import Target

    workload = WORKLOADS.load(args.workload)
    settings = Settings(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)})
    workload.check(settings)
    pass_on_collect(args)
    Target.parse(settings.until)
    if args.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = args.devices
    with _terminable():
        place = _own_place(args)
        if place is not None:
            return _train_as_rank(args, workload, settings, place)
        team = _team(args)
        if team is not None:
            return _train_team(args, workload, settings, team)
        return _train_alone(args, workload, settings)


# -- who trains where ------------------------------------------------------------------------------


def _own_place(args: argparse.Namespace) -> Place | None:
    """The rank that this process was made by a launcher, or that Slurm says it is."""
    from profkit import ranks

    if not ranks.place_of_this_process() and not ranks.slurm_team(_gpus(args) or 0):
        os.environ.update(ranks.slurm_rank() or {})
    place = ranks.place_of_this_process()
    return place if place and place.world_size > 1 else None


def _team(args: argparse.Namespace) -> Team | None:
    """The ranks that are to be started here; `None` for a single one."""
    from profkit import ranks

    gpus = _gpus(args)
    if args.ranks and gpus:
        raise UsageError("--ranks trains on the CPU and --gpus on GPUs: give one of them")
    if gpus:
        check_gpus(gpus)
    if args.node_rank >= args.nnodes:
        raise UsageError(f"--node-rank {args.node_rank} is out of range: {args.nnodes} nodes are numbered from 0")
    if args.nnodes > 1 and not args.rdzv_endpoint:
        raise UsageError("--nnodes needs --rdzv-endpoint HOST:PORT: a place on the machine of --node-rank 0 where all ranks meet")
    if args.rdzv_endpoint:
        ranks.check_endpoint(args.rdzv_endpoint)
    team = ranks.slurm_team(gpus or 0) or ranks.Team(gpus or args.ranks or 1, args.nnodes, args.node_rank, args.rdzv_endpoint)
    return team if team.world_size > 1 else None


def _gpus(args: argparse.Namespace) -> int | None:
    """How many GPUs were asked for, by count or by ids."""
    listed = len(args.devices.split(",")) if args.devices else None
    if args.gpus and listed and args.gpus > listed:
        raise UsageError(f"--gpus {args.gpus}, but --devices lists {listed}")
    count: int | None = args.gpus or listed
    return count


def check_gpus(wanted: int) -> None:
    """Refuse GPUs that are not there; never train on the CPU instead."""
    there, why = visible_gpus()
    if wanted > there:
        raise UsageError(f"{plural(wanted, 'GPU')} asked for, {there} here{why}; --ranks trains on the CPU")


def visible_gpus() -> tuple[int, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return 0, f" (the NVIDIA driver: {error})"
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count, ""
    ids = [word for word in listed.split(",") if word.strip()]
    return len([word for word in ids if not word.isdigit() or int(word) < count]), f" (CUDA_VISIBLE_DEVICES={listed}, of {count})"


def _seat(args: argparse.Namespace, settings: Settings, place: Place) -> Seat:
    """On the GPU of its local number, where there are GPUs and the CPU was not asked for."""
    from profkit.workloads._prepare import Seat, gpu_count

    there = 0 if args.ranks else gpu_count(settings.framework)
    if (_gpus(args) or 0) > 0 and not there:
        raise UsageError(f"{settings.framework} sees no GPU here: its build has no CUDA, or the driver is too old for it; --ranks trains on the CPU")
    if there and place.local_rank >= there:
        raise UsageError(f"rank {place.rank} is number {place.local_rank} on its machine, which has {plural(there, 'GPU')}")
    return Seat(place.rank, place.world_size, place.local_rank if there else None)


# -- one rank, alone -------------------------------------------------------------------------------


def _train_alone(args: argparse.Namespace, workload: Workload, settings: Settings) -> int:
    from profkit.environment import disabled
    from profkit.instrument.frameworks._base import Place

    if _gpus(args):
        check_gpus(_gpus(args) or 1)
    job = _prepare(args, workload, settings, Place())
    _announce(workload.title, settings, job)
    return _train_bare(job) if disabled() else _train_traced(args, settings, job)


def _prepare(args: argparse.Namespace, workload: Workload, settings: Settings, place: Place) -> ReadyJob:
    from profkit.workloads import _prepare
    from profkit.workloads._base import wait_passively

    wait_passively()
    seat = _seat(args, settings, place)
    _prepare.check(workload, settings, on_gpu=seat.gpu is not None)
    return _prepare.prepare(workload, settings, seat)


def _announce(title: str, settings: Settings, job: ReadyJob) -> None:
    config = job.config
    ranks = f" and {config['global_batch_size']} in all, {plural(config['world_size'], 'rank')}" if config["world_size"] > 1 else ""
    line = f"{title}, {settings.framework} on {job.device}, {config['precision']}, batch {config['batch_size']} a rank{ranks}, {config['steps']} steps"
    note = f"; reduced for this machine: {config['reduced']}" if config.get("reduced") else ""
    print(safe_text(line + note), file=sys.stderr)


def _train_bare(job: ReadyJob) -> int:
    from profkit.instrument.recorder import NullRecorder
    from profkit.workloads._progress import ProgressBar

    with ProgressBar("training, profkit is switched off by PROFKIT_DISABLE") as progress:
        outcome = job.train(NullRecorder(), lambda step, steps, loss: progress(step, steps))
    _say_outcome(outcome)
    return ExitCode.DONE


def _say_outcome(outcome: Outcome) -> None:
    print(f"{outcome.steps} steps, loss {outcome.first_loss!r} at the first and {outcome.last_loss!r} at the last", file=sys.stderr)
    for line in _notes(outcome):
        print(safe_text(line), file=sys.stderr)


def _notes(outcome: Outcome) -> tuple[str, ...]:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
    return tuple(note for note in (outcome.stopped, f"evaluation: {figures}" if figures else "") if note)


def _train_traced(args: argparse.Namespace, settings: Settings, job: ReadyJob) -> int:
    from profkit.session import finish_run, open_session, record_own_cost
    from profkit.workloads._progress import ProgressBar

    path = None
    try:
        with open_session(args.output, _run_name(args, job), _manifest(args, settings, job), device=job.device) as session, ProgressBar("training") as progress:
            path = session.path
            outcome = job.train(session.recorder, lambda step, steps, loss: progress(step, steps))
    except BaseException as error:
        _say_where(path, error)
        raise
    _say_outcome(outcome)
    finish_run(path, _reason_not_recorded(path), notes=_notes(outcome))
    record_own_cost(path)
    _show(path, args.json)
    return ExitCode.DONE


def _say_where(path: Path | None, error: BaseException) -> None:
    if path and isinstance(error, KeyboardInterrupt | Terminated | ProfkitError):
        shown = safe_text(str(path))
        print(f"stopped early; what was recorded is in {shown} (see 'profkit report {shown}')", file=sys.stderr)


def _reason_not_recorded(path: Path) -> str:
    """Why the run is marked as aborted already, though the training went well: its disk failed."""
    from profkit.trace import RunManifest

    with contextlib.suppress(ProfkitError):
        return RunManifest.read(path).why
    return ""


def _manifest(args: argparse.Namespace, settings: Settings, job: ReadyJob) -> RunManifest:
    from profkit.trace import RunManifest

    return RunManifest(workload=args.workload, framework=settings.framework, config=job.config, world_size=job.config["world_size"])


def _run_name(args: argparse.Namespace, job: ReadyJob) -> str:
    config = job.config
    return f"{args.workload}-{args.framework}-{config['precision']}-{config['world_size']}x{config['batch_size']}"


def _show(path: Path, json: bool) -> None:
    from profkit.analysis.overview import build_overview
    from profkit.report import as_json, as_text
    from profkit.trace.reader import Trace

    view = build_overview(Trace.open(path))
    print(as_json.dumps(as_json.overview(view)) if json else as_text.overview(view, next_command=f"profkit report {shlex.quote(str(path))}"))


# -- several ranks ---------------------------------------------------------------------------------


def _train_team(args: argparse.Namespace, workload: Workload, settings: Settings, team: Team) -> int:
    """Start this node's ranks and wait for them. The first node's process keeps `run.json`, and shows the run."""
    from profkit.ranks import run_ranks
    from profkit.workloads._prepare import check, find_data

    check(workload, settings, on_gpu=bool(_gpus(args)))
    find_data(workload, settings)
    run = None
    if team.node == 0 and not _disabled():
        run = _new_team_run(args, settings, team)
    extra = {} if args.ranks is None else {"CUDA_VISIBLE_DEVICES": ""}
    try:
        code, why = run_ranks(team, args.words, run, extra=extra)
    except BaseException as error:
        _conclude(run, f"{type(error).__name__}: {error}")
        raise
    _conclude(run, why)
    if why:
        print(f"profkit: {why}", file=sys.stderr)
        _say_where(run, ProfkitError(why))
    elif run is not None:
        _show(run, args.json)
    return code


def _disabled() -> bool:
    from profkit.environment import disabled

    return disabled()


def _new_team_run(args: argparse.Namespace, settings: Settings, team: Team) -> Path:
    from profkit.session import make_run
    from profkit.trace import RunManifest

    manifest = RunManifest(workload=args.workload, framework=settings.framework, world_size=team.world_size)
    return make_run(args.output, f"{args.workload}-{args.framework}-{team.world_size}ranks", manifest)


def _conclude(run: Path | None, why: str) -> None:
    from profkit.session import finish_run, record_own_cost

    if run is None:
        return
    finish_run(run, why)
    if not why:
        record_own_cost(run)


def _train_as_rank(args: argparse.Namespace, workload: Workload, settings: Settings, place: Place) -> int:
    """Train as one of several; an error goes to the process that started this one, if that was profkit."""
    try:
        job = _prepare(args, workload, settings, place)
        if place.rank == 0:
            _announce(workload.title, settings, job)
        _record_as_rank(args, settings, job, place)
    except Exception as error:  # the rank's end: whatever it was goes to the process that started it, else on
        from profkit.ranks import write_error

        expected = isinstance(error, ProfkitError)
        words = str(error) if expected else _last_lines(error)
        if write_error(words):
            return int(error.exit_code) if isinstance(error, ProfkitError) else ExitCode.UNFINISHED
        raise
    return ExitCode.DONE


def _last_lines(error: Exception) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _record_as_rank(args: argparse.Namespace, settings: Settings, job: ReadyJob, place: Place) -> None:
    from profkit.instrument.recorder import NullRecorder
    from profkit.session import open_rank

    if _disabled():
        _say_rank(place, job.train(NullRecorder(), lambda step, steps, loss: None))
        return
    run, is_ours = _rank_run(args, settings, job, place)
    with open_rank(run, settings.framework, job.device, place=place) as recorder, _progress(place) as progress:
        outcome = job.train(recorder, lambda step, steps, loss: progress(step, steps))
    _say_rank(place, outcome)
    if place.rank == 0:
        _add_to_manifest(run, notes=_notes(outcome))
        if is_ours:
            _conclude(run, "")


def _say_rank(place: Place, outcome: Outcome) -> None:
    if place.rank == 0:
        _say_outcome(outcome)


@contextlib.contextmanager
def _progress(place: Place) -> Iterator[Any]:
    """Told by the first rank alone."""
    from profkit.workloads._progress import ProgressBar

    if place.rank:
        yield lambda step, steps: None
        return
    with ProgressBar("training") as progress:
        yield progress


def _rank_run(args: argparse.Namespace, settings: Settings, job: ReadyJob, place: Place) -> tuple[Path, bool]:
    """The run's folder, and whether this rank keeps `run.json` because no process of profkit's has started it.

    On a node that does not share the first one's disk, a folder of the same name is made.
    """
    from profkit.ranks import RUN_VARIABLE
    from profkit.session import make_run

    given = os.environ.get(RUN_VARIABLE)
    if place.rank == 0 and not given:
        made = make_run(args.output, _run_name(args, job), _manifest(args, settings, job))
    name = job.share((Path(given).name if given else made.name) if place.rank == 0 else "")
    run = Path(given) if given else args.output / name
    run.mkdir(parents=True, exist_ok=True)
    if place.rank == 0 and given:
        _add_to_manifest(run, config=job.config)
    return run, not given


def _add_to_manifest(run: Path, **changes: Any) -> None:
    from profkit.trace import RunManifest

    dataclasses.replace(RunManifest.read(run), **changes).write(run)


# -- signals ---------------------------------------------------------------------------------------


class Terminated(SystemExit):
    """The process was told to end by a signal; the exit code is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the run is closed and marked."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
