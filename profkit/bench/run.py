"""Runs a matrix of configurations: each cell as `profkit trace` runs it, repeat by repeat, and again only what is not finished.

A finished run stands in the matrix' folder under its cell's name. It is recorded in `unfinished/` and
moved when it is whole, so an interruption at any moment leaves finished runs and no half ones among them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from profkit.analysis.costs import run_costs
from profkit.analysis.matrix import NS_A_SECOND, Setting
from profkit.clock import wall_ns
from profkit.errors import ExitCode, ProfkitError, UnreadableError, UsageError
from profkit.run.launch import describe_end
from profkit.text import plural, safe_text, significant
from profkit.trace.integrity import owner_lives, this_process, verify
from profkit.trace.jsonfile import read_json, replace_json
from profkit.trace.manifest import RunManifest
from profkit.trace.reader import Trace, find_runs
from profkit.vocab import Integrity

MATRIX_FILE: Final = "bench.json"
UNFINISHED: Final = "unfinished"
DALI: Final = "DALI"
AMP: Final = "amp"
FULL: Final = "fp32"

AXES: Final = (
    "PROFKIT_GPUS",
    "PROFKIT_DEVICES",
    "PROFKIT_RANKS",
    "PROFKIT_AMP",
    "PROFKIT_BATCH_SIZE",
    "PROFKIT_DALI",
)

_FORMAT: Final = "profkit-bench"
_GRACE_S: Final = 30.0
"""How long a run that is told to end may take to close its files."""


@dataclass(frozen=True)
class Plan:
    """A matrix to run. `scale` is the option that says how many take part; `shared` are the words that all cells have in common."""

    workload: str
    framework: str
    scale: str
    settings: tuple[Setting, ...]
    repeats: int
    seed: int
    shared: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.scale.removeprefix("--").removesuffix("s")

    def words(self, setting: Setting, output: Path) -> list[str]:
        """The command line of one cell, behind `profkit`."""
        options = [self.scale, str(setting.gpus), "--batch-size", str(setting.batch_size)]
        switches = ["--amp"] * setting.mixed + ["--dali"] * (setting.loader == DALI)
        return [
            "trace",
            self.workload,
            "--framework",
            self.framework,
            *options,
            *switches,
            *self.shared,
            "--output",
            str(output),
        ]

    def name(self, setting: Setting, repeat: int) -> str:
        """As the reports name their logs: model, GPUs, precision, batch size."""
        loader = "_dali" if setting.loader == DALI else ""
        return f"{self.workload}_{self.framework}_{self.unit}{setting.gpus}_{setting.precision}_bs{setting.batch_size}{loader}_r{repeat + 1}"

    def describe(self, setting: Setting) -> str:
        return f"{plural(setting.gpus, self.unit)}, {setting.precision}, batch {setting.batch_size}, {setting.loader}"


@dataclass
class Progress:
    """What a matrix has come to so far."""

    runs: dict[tuple[Setting, int], Path] = field(default_factory=dict)
    failures: dict[tuple[Setting, int], str] = field(default_factory=dict)

    def of(self, setting: Setting) -> list[Path]:
        return [run for (own, _), run in sorted(self.runs.items()) if own == setting]

    def why_not(self, setting: Setting) -> str:
        """Why a cell's first failed repeat failed; empty where none did."""
        return next((why for (own, _), why in sorted(self.failures.items()) if own == setting), "")


def run_order(plan: Plan) -> Iterator[tuple[Setting, int]]:
    """Every cell once in each repeat, in a new order, so that a machine that slows down does not favour the cells that come first."""
    for repeat in range(plan.repeats):
        settings = list(plan.settings)
        random.Random(f"{plan.seed}/{repeat}").shuffle(settings)
        yield from ((setting, repeat) for setting in settings)


def find_finished(plan: Plan, folder: Path) -> Progress:
    """The runs that are there and whole; torn ones and those of another setting are set aside, to be run again."""
    found = Progress()
    for setting, repeat in run_order(plan):
        path = folder / plan.name(setting, repeat)
        if path.is_dir():
            if _is_whole(path) and not _departure(path, setting):
                found.runs[setting, repeat] = path
            else:
                _set_aside(path, folder)
    return found


def _is_whole(path: Path) -> bool:
    try:
        return verify(path).state is Integrity.COMPLETE
    except ProfkitError:
        return False


def _set_aside(path: Path, folder: Path) -> None:
    place = folder / UNFINISHED / f"{path.name}-{wall_ns()}"
    place.parent.mkdir(parents=True, exist_ok=True)
    path.rename(place)


def _departure(run: Path, setting: Setting) -> str:
    """Where a run is not what its cell says, as when a configuration file sets what the cell leaves open."""
    config = RunManifest.read(run).config
    mixed = config.get("precision") != FULL
    pairs = {
        "ranks": (setting.gpus, config.get("world_size")),
        "batch": (setting.batch_size, config.get("batch_size")),
        "mixed precision": (setting.mixed, mixed),
        "loader": (setting.loader, config.get("loader")),
    }
    return "; ".join(
        f"{name}: {wanted} was asked for, the run has {got}"
        for name, (wanted, got) in pairs.items()
        if wanted != got
    )


# -- the folder ------------------------------------------------------------------------------------


@contextlib.contextmanager
def claim(plan: Plan, folder: Path) -> Iterator[None]:
    """Hold the matrix' folder while cells run: one process at a time, and one set of shared options for all its runs."""
    path = folder / MATRIX_FILE
    settings = {
        "workload": plan.workload,
        "framework": plan.framework,
        "scale": plan.scale,
        "shared": list(plan.shared),
    }
    shown = safe_text(str(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check_same(read_json(path), settings, shown)
        replace_json(path, {"format": _FORMAT, "settings": settings, "owner": this_process()})
        yield
        replace_json(path, {"format": _FORMAT, "settings": settings, "owner": {}})
    except OSError as error:
        raise ProfkitError(
            f"{shown}: {error.strerror}; choose another folder with --output"
        ) from error


def _check_same(content: Mapping[str, Any], settings: Mapping[str, Any], shown: str) -> None:
    before = content.get("settings")
    if content.get("format") != _FORMAT or not isinstance(before, dict):
        raise UnreadableError(
            f"{shown}/{MATRIX_FILE}: not a matrix of profkit's; choose another folder with --output"
        )
    if owner_lives(content.get("owner") or {}):
        raise ProfkitError(
            f"{shown}: a matrix is being run there by process {content['owner'].get('pid')}; wait for it, or choose another folder with --output"
        )
    unlike = [
        f"{name}: {_said(before.get(name))} there, {_said(value)} now"
        for name, value in settings.items()
        if before.get(name) != value
    ]
    if unlike:
        raise UsageError(
            f"{shown}: holds a matrix of other settings ({'; '.join(unlike)}); choose another folder with --output"
        )


def _said(value: Any) -> str:
    return (
        safe_text(" ".join(map(str, value)) if isinstance(value, list) else str(value)) or "nothing"
    )


# -- running ---------------------------------------------------------------------------------------


def run_matrix(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Progress:
    """Run what is not finished yet. A cell that fails is noted with its reason, and the others go on."""
    progress = find_finished(plan, folder)
    order = list(run_order(plan))
    if progress.runs:
        tell(
            f"{len(progress.runs)} of {plural(len(order), 'run')} {'is' if len(progress.runs) == 1 else 'are'} finished already\n"
        )
    for number, (setting, repeat) in enumerate(order, start=1):
        if (setting, repeat) in progress.runs:
            continue
        tell(f"[{number}/{len(order)}] {plan.describe(setting)}, repeat {repeat + 1}: ")
        _run_one(plan, folder, setting, repeat, progress)
        tell(_outcome(progress, setting, repeat) + "\n")
    return progress


def _outcome(progress: Progress, setting: Setting, repeat: int) -> str:
    if (setting, repeat) in progress.failures:
        return f"failed: {progress.failures[setting, repeat]}"
    costs = run_costs(Trace.open(progress.runs[setting, repeat]))
    if not costs.steps or not costs.samples.any():
        return "done, with no steady steps: give it more with --steps"
    return f"{significant(setting.gpus * NS_A_SECOND * float(costs.samples.sum()) / float(costs.wall_ns.sum()))} samples/s"


def _run_one(plan: Plan, folder: Path, setting: Setting, repeat: int, progress: Progress) -> None:
    name = plan.name(setting, repeat)
    place = folder / UNFINISHED / name
    before = set(find_runs(place))
    log = folder / f"{name}.log"
    code = _run_logged(plan.words(setting, place), log)
    made = [run for run in find_runs(place) if run not in before]
    why = _why_not(code, made, log, setting)
    if why:
        progress.failures[setting, repeat] = why
        return
    finished = folder / name
    made[-1].rename(finished)
    if not before:
        shutil.rmtree(place)
    progress.runs[setting, repeat] = finished


def _why_not(code: int, made: Sequence[Path], log: Path, setting: Setting) -> str:
    if code:
        return _last_words(log) or describe_end(code).replace("the job", "it", 1)
    if not made:
        return f"it left no run (see {safe_text(str(log))})"
    if not _is_whole(made[-1]):
        return f"its run is not whole (see 'profkit verify {safe_text(str(made[-1]))}')"
    return _departure(made[-1], setting)


def _last_words(log: Path) -> str:
    """What `profkit trace` said last: its own error, which is one line, else the last line of what raised."""
    said = log.read_text(encoding="utf-8", errors="replace")
    lines = re.findall(r"^profkit: (.+)$", said, re.MULTILINE) or said.split("\n")
    return safe_text(next((line.strip() for line in reversed(lines) if line.strip()), ""))


def _run_logged(words: Sequence[str], log: Path) -> int:
    """Run `profkit` with these words, all it says kept in `log`; an interruption of ours is handed to all its processes, once."""
    with log.open("wb") as file, _interruptible():
        process = subprocess.Popen(
            [sys.executable, "-m", "profkit", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=_environment(),
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _environment() -> dict[str, str]:
    """Ours, without what says the axes to the matrix: each cell is told its own place on them."""
    return {name: value for name, value in os.environ.items() if name not in AXES}


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on Ctrl-C: the cell that runs is closed first."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C for the run's processes, as a terminal would send it; what does not heed it in time is killed."""
    try:
        _signal_all(process, signal.SIGINT)
        process.wait(_GRACE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        _signal_all(process, signal.SIGKILL)
        process.wait()


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def exit_code(progress: Progress) -> ExitCode:
    return ExitCode.UNFINISHED if progress.failures else ExitCode.DONE
