"""Runs the cells of a matrix as `profkit trace` does, and resumes what is left.

A finished run is in the matrix' folder under its cell's name. It is recorded in `unfinished/` and
moved when it is whole, so an interruption at any moment leaves only finished runs in the folder.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from profkit.analysis.matrix import NS_A_SECOND, Setting
from profkit.bench.process import run_logged
from profkit.clock import wall_ns
from profkit.errors import ProfkitError, UnreadableError, UsageError
from profkit.frame.run_frame import frame_of
from profkit.run.concluding import describe_end
from profkit.text import plural, safe_text, shell_word, significant
from profkit.trace.integrity import owner_lives, this_process, verify
from profkit.trace.jsonfile import read_json, replace_json
from profkit.trace.manifest import RunManifest
from profkit.trace.reader import Trace, find_runs
from profkit.vocab import Integrity

MATRIX_FILE: Final = "bench.json"
UNFINISHED: Final = "unfinished"
DALI: Final = "DALI"
DALI_GPU: Final = "DALI on the GPU"
AMP: Final = "amp"
FULL: Final = "fp32"
TIMED_OUT: Final = "timed out"
_FORMAT: Final = "profkit-bench"


@dataclass(frozen=True)
class Plan:
    """A matrix to run."""

    workload: str
    scale: str
    """The option that sets how many GPUs or ranks take part."""
    settings: tuple[Setting, ...]
    repeats: int
    seed: int
    shared: tuple[str, ...] = ()
    """The words of the command line that all cells have in common."""
    limit_s: float | None = None
    """A run that takes longer is ended, and its cell has failed."""

    @property
    def unit(self) -> str:
        """One of what takes part: `gpu` or `rank`."""
        return self.scale.removeprefix("--").removesuffix("s")

    def words(self, setting: Setting, output: Path) -> list[str]:
        """Return the command line of one cell, after `profkit`."""
        words = ["trace", self.workload, "--framework", setting.framework]
        words += [self.scale, str(setting.gpus), "--batch-size", str(setting.batch_size)]
        if setting.mixed:
            words.append("--amp")
        if setting.loader == DALI:
            words.append("--dali")
        elif setting.loader == DALI_GPU:
            words += ["--dali", "gpu"]
        return [*words, *self.shared, "--output", str(output)]

    def name(self, setting: Setting, repeat: int) -> str:
        """Return a name in the style of the published logs: model, GPUs, precision, batch size."""
        loader = {DALI: "_dali", DALI_GPU: "_dali-gpu"}.get(setting.loader, "")
        return (
            f"{self.workload}_{setting.framework}_{self.unit}{setting.gpus}_{setting.precision}"
            f"_bs{setting.batch_size}{loader}_r{repeat + 1}"
        )

    def describe(self, setting: Setting) -> str:
        """Return a setting in words."""
        words = [plural(setting.gpus, self.unit), setting.precision, f"batch {setting.batch_size}"]
        if not setting.loader.startswith(setting.framework):
            words.append(setting.framework)
        return ", ".join([*words, setting.loader])


@dataclass
class Progress:
    """The finished and failed runs of a matrix so far."""

    runs: dict[tuple[Setting, int], Path] = field(default_factory=dict)
    failures: dict[tuple[Setting, int], str] = field(default_factory=dict)

    def of(self, setting: Setting) -> tuple[list[Path], str]:
        """Return the finished runs of a cell by repeat, and why its first failed one failed."""
        runs = [run for (own, _), run in sorted(self.runs.items()) if own == setting]
        whys = [why for (own, _), why in sorted(self.failures.items()) if own == setting]
        return runs, whys[0] if whys else ""


def run_order(plan: Plan) -> Iterator[tuple[Setting, int]]:
    """Yield every cell once in each repeat, each time in another order.

    If the machine becomes slower, no cell is always measured before the others.
    """
    for repeat in range(plan.repeats):
        settings = list(plan.settings)
        random.Random(f"{plan.seed}/{repeat}").shuffle(settings)
        for setting in settings:
            yield setting, repeat


def find_finished(plan: Plan, folder: Path) -> Progress:
    """Find the whole runs in the folder.

    Torn runs and those of another setting are moved away, so that they are run again.
    """
    found = Progress()
    for setting, repeat in run_order(plan):
        path = folder / plan.name(setting, repeat)
        if not path.is_dir():
            continue
        if is_whole(path) and not _departure(path, setting):
            found.runs[setting, repeat] = path
        else:
            place = folder / UNFINISHED / f"{path.name}-{wall_ns()}"
            place.parent.mkdir(parents=True, exist_ok=True)
            path.rename(place)
    return found


def is_whole(path: Path) -> bool:
    try:
        return verify(path).state is Integrity.COMPLETE
    except ProfkitError:
        return False


def _departure(run: Path, setting: Setting) -> str:
    """Return how a run differs from its cell, such as by a configuration file's settings."""
    config = RunManifest.read(run).config
    pairs = {
        "ranks": (setting.gpus, config.get("world_size")),
        "batch": (setting.batch_size, config.get("batch_size")),
        "mixed precision": (setting.mixed, config.get("precision") != FULL),
        "loader": (setting.loader, config.get("loader")),
    }
    words = []
    for name, (wanted, got) in pairs.items():
        if wanted != got:
            words.append(f"{name}: {wanted} was asked for, the run has {got}")
    return "; ".join(words)


@contextlib.contextmanager
def claim(plan: Plan, folder: Path) -> Iterator[None]:
    """Hold the matrix' folder while cells run.

    One process at a time may hold it, and all its runs have one set of shared options.
    """
    path = folder / MATRIX_FILE
    settings = {
        "workload": plan.workload,
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
    """Raise an error if the folder holds something else than a free matrix of these settings."""
    before = content.get("settings")
    if content.get("format") != _FORMAT or not isinstance(before, dict):
        raise UnreadableError(
            f"{shown}/{MATRIX_FILE}: not a matrix of profkit's; choose another folder with --output"
        )
    if owner_lives(content.get("owner") or {}):
        raise ProfkitError(
            f"{shown}: a matrix is being run there by process {content['owner'].get('pid')}; "
            "wait for it, or choose another folder with --output"
        )
    unlike = []
    for name, value in settings.items():
        if before.get(name) != value:
            unlike.append(f"{name}: {_shown(before.get(name))} there, {_shown(value)} now")
    if unlike:
        raise UsageError(
            f"{shown}: holds a matrix of other settings ({'; '.join(unlike)}); "
            "choose another folder with --output"
        )


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return safe_text(text) or "nothing"


def run_matrix(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Progress:
    """Run what is not finished yet; a cell that fails is noted, and the others are run."""
    progress = find_finished(plan, folder)
    order = list(run_order(plan))
    if progress.runs:
        verb = "is" if len(progress.runs) == 1 else "are"
        tell(f"{len(progress.runs)} of {plural(len(order), 'run')} {verb} finished already\n")
    for number, (setting, repeat) in enumerate(order, start=1):
        if (setting, repeat) in progress.runs:
            continue
        tell(f"[{number}/{len(order)}] {plan.describe(setting)}, repeat {repeat + 1}: ")
        _, why = progress.of(setting)
        if why.startswith(TIMED_OUT):
            progress.failures[setting, repeat] = why
            tell("not run, because an earlier repeat timed out\n")
        else:
            tell(_run_one(plan, folder, setting, repeat, progress) + "\n")
    return progress


def _run_one(plan: Plan, folder: Path, setting: Setting, repeat: int, progress: Progress) -> str:
    """Run one repeat of a cell, note its result, and return it in words."""
    name = plan.name(setting, repeat)
    place = folder / UNFINISHED / name
    before = set(find_runs(place))
    log = folder / f"{name}.log"
    try:
        code = run_logged(plan.words(setting, place), log, plan.limit_s)
        made = []
        for run in find_runs(place):
            if run not in before:
                made.append(run)
        why = _why_failed(code, made, log, setting)
    except subprocess.TimeoutExpired as error:
        why = f"{TIMED_OUT}: it was ended after {error.timeout:g} s (--time-limit), see {log.name}"
    if why:
        progress.failures[setting, repeat] = why
        return f"failed: {why}"
    finished = folder / name
    made[-1].rename(finished)
    if not before:
        shutil.rmtree(place)
    progress.runs[setting, repeat] = finished
    costs = frame_of(Trace.open(finished)).costs
    if not costs.steps or not costs.samples.any():
        return "done, with no steady steps: give it more with --steps"
    throughput = (
        setting.gpus * NS_A_SECOND * float(costs.samples.sum()) / float(costs.wall_ns.sum())
    )
    return f"{significant(throughput)} samples/s"


def _why_failed(code: int, made: Sequence[Path], log: Path, setting: Setting) -> str:
    """Return why a run failed; empty if it did not.

    The reason is the error of `profkit trace`, which is one line, or the last line of the log.
    """
    if code:
        said = log.read_text(encoding="utf-8", errors="replace")
        lines = re.findall(r"^profkit: (.+)$", said, re.MULTILINE) or said.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return safe_text(last) or describe_end(code).replace("the job", "it", 1)
    if not made:
        return f"it left no run (see {safe_text(str(log))})"
    if not is_whole(made[-1]):
        return f"its run is not whole (see 'profkit verify {shell_word(str(made[-1]))}')"
    return _departure(made[-1], setting)
