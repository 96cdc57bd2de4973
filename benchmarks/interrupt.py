"""Kill profkit at random moments while it writes files other than rows, and check them.

    python benchmarks/interrupt.py [--trials 200] [--seed 0] [--paths import export ...]

benchmarks/kill.py checks the rows. Each trial starts from the same state, kills the writer within
its usual time, and reads: the files must be the old ones, the new ones, or absent. Prints a line
per path; exits 1 if a file was half written.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from trace_samples import kineto

from profkit.analysis.timeline.cache import WORTH_KEEPING, LaneCache
from profkit.analysis.timeline.lanes import Group, Lane
from profkit.analysis.timeline.levels import Level, Pieces
from profkit.cli import main as profkit
from profkit.errors import UnreadableError
from profkit.testing import synthetic_trace
from profkit.trace import RunManifest, Trace, verify
from profkit.trace.baselines import find_baseline, save_baseline
from profkit.trace.reader import find_runs
from profkit.vocab import Integrity

Check = Callable[[Path], str]
"""The state of the files: `old`, `new`, `nothing`, or `HALF` with the reason."""


def import_trace(folder: Path) -> None:
    profkit(["import", str(folder / "trace.json"), "-o", str(folder / "traces")])


def export_run(folder: Path, shape: str) -> None:
    profkit(
        [
            "export",
            str(folder / "base"),
            "--format",
            shape,
            "--steps",
            "all",
            "-w",
            str(folder / "out"),
        ]
    )


def write_report(folder: Path) -> None:
    profkit(["report", str(folder / "base"), "-w", str(folder / "report.html")])


def keep_baseline(folder: Path) -> None:
    save_baseline(folder / "baselines", "main", folder / "again")


def take_picture(folder: Path) -> None:
    profkit(
        [
            "tui",
            str(folder / "base"),
            "--screen",
            "overview",
            "--screenshot",
            str(folder / "picture.svg"),
        ]
    )


def keep_lanes(folder: Path) -> None:
    LaneCache(folder / "cache").save(Group.PHASES, [folder / "trace.json"], _lanes())


def replace_manifests(folder: Path) -> None:
    for number in range(60):
        RunManifest(workload=f"workload {number}", notes=("x" * 5000,)).write(folder / "base")


def runs_are_whole(folder: Path) -> str:
    runs = find_runs(folder / "traces")
    states = {verify(run).state for run in runs}
    if not runs:
        return "nothing"
    return "new" if states == {Integrity.COMPLETE} else f"HALF: {states}"


def export_is_whole(folder: Path, shape: str) -> str:
    if not (folder / "out").exists():
        return "nothing"
    return (
        "new"
        if _sum_of(folder / "out") == _sum_of(folder / f"whole {shape}")
        else "HALF: other files"
    )


def _state_of(content: str, end: str) -> str:
    if content == "old":
        return "old"
    return "new" if content.endswith(end) else "HALF: no end"


def report_is_whole(folder: Path) -> str:
    content = (folder / "report.html").read_text()
    return _state_of(content, "</html>\n")


def picture_is_whole(folder: Path) -> str:
    content = (folder / "picture.svg").read_text()
    return _state_of(content, "</svg>\n")


def lanes_are_whole(folder: Path) -> str:
    """Return true if a half-written lane is ignored and made again."""
    found = LaneCache(folder / "cache").load(Group.PHASES, [folder / "trace.json"])
    if found is None:
        return "nothing"
    same = all(
        np.array_equal(one, other)
        for made, read in zip(_lanes(), found, strict=True)
        for one, other in zip(made.level.pieces.columns, read.level.pieces.columns, strict=True)
    )
    return "new" if same else "HALF: other lanes"


def _lanes() -> list[Lane]:
    """Return one lane that is long enough to be cached."""
    times = np.arange(2 * WORTH_KEEPING, dtype=np.int64) * 10
    codes = np.zeros(len(times), dtype=np.int32)
    return [
        Lane(Group.PHASES, "lane", Level(Pieces(times, times + 10, codes, codes, codes), ("kind",)))
    ]


def baseline_is_whole(folder: Path) -> str:
    kept = Trace.open(find_baseline(folder / "baselines", "main")).steps
    fitting = (
        name
        for name, run in {"old": "base", "new": "again"}.items()
        if kept.equals(Trace.open(folder / run).steps)
    )
    return next(fitting, "HALF: other rows")


def manifest_is_whole(folder: Path) -> str:
    return "old" if RunManifest.read(folder / "base").workload == "synthetic" else "new"


SHAPES = ("csv", "parquet", "chrome")

PATHS: dict[str, tuple[Callable[[Path], None], Check]] = {
    "import": (import_trace, runs_are_whole),
    **{
        f"export {shape}": (partial(export_run, shape=shape), partial(export_is_whole, shape=shape))
        for shape in SHAPES
    },
    "report": (write_report, report_is_whole),
    "picture": (take_picture, picture_is_whole),
    "cache": (keep_lanes, lanes_are_whole),
    "baseline": (keep_baseline, baseline_is_whole),
    "manifest": (replace_manifests, manifest_is_whole),
}
"""Each writer, with the check of the files that it leaves."""


def run(name: str, trials: int, seed: int) -> Counter[str]:
    """Return the outcome of each trial."""
    write, check = PATHS[name]
    chance, found = random.Random(f"{seed}{name}"), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        start = Path(scratch) / "start"
        _prepare(start)
        usual_s = max(
            _write_and_kill(write, start, Path(scratch) / "first", None) for _ in range(2)
        )
        for trial in range(trials):
            folder = Path(scratch) / str(trial)
            _write_and_kill(write, start, folder, chance.random() * usual_s)
            try:
                found[check(folder)] += 1
            except (UnreadableError, OSError) as error:
                found[f"HALF: {error}"] += 1
            shutil.rmtree(folder)
    return found


def _prepare(folder: Path) -> None:
    base = synthetic_trace(folder / "base", steps=60)
    synthetic_trace(folder / "again", steps=60, seed=1)
    save_baseline(folder / "baselines", "main", base)
    (folder / "trace.json").write_bytes(kineto())
    for name in ("report.html", "picture.svg"):
        (folder / name).write_text("old")
    with (
        open(os.devnull, "w", encoding="utf-8") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        for shape in SHAPES:
            profkit(
                [
                    "export",
                    str(base),
                    "--format",
                    shape,
                    "--steps",
                    "all",
                    "-w",
                    str(folder / f"whole {shape}"),
                ]
            )


def _write_and_kill(
    write: Callable[[Path], None], start: Path, folder: Path, after_s: float | None
) -> float:
    """Let a fork write into a copy, kill it after a while, and return how long it lived."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(start, folder)
    begin = time.perf_counter()
    child = os.fork()
    if not child:
        try:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            write(folder)
        finally:
            os._exit(0)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return time.perf_counter() - begin


def _sum_of(folder: Path) -> str:
    """Return the digest of a file or of a folder's files."""
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    return hashlib.sha256(
        b"".join(
            (path.name.encode() if folder.is_dir() else b"") + path.read_bytes() for path in files
        )
    ).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--trials", type=int, default=200, help="of each path (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=list(PATHS))
    arguments = parser.parse_args()
    half = 0
    for name in arguments.paths:
        found = run(name, arguments.trials, arguments.seed)
        half += sum(count for state, count in found.items() if state.startswith("HALF"))
        print(
            f"{name}: {arguments.trials} kills: "
            + ", ".join(f"{state} {count}" for state, count in found.most_common()),
            flush=True,
        )
    print(f"{len(arguments.paths)} write paths, {arguments.trials} kills each: {half} half there")
    return 1 if half else 0


if __name__ == "__main__":
    sys.exit(main())
