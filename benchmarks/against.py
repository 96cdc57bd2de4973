"""Import and report the same files with another environment's profkit, alternately.

    python benchmarks/against.py --against PYTHON [--data FOLDER] [--turns 9] [--megabytes 100]
                                 [--damaged 40] [--cases NAME ...]

PYTHON is the interpreter of an environment with another version of profkit, such as the one before
a change. The files are the traces and logs of ../shared/data, one of each repeated to a size, and
damaged ones. In each turn a process of either version reads all files of a case, in random order
of the versions. A file's time is the CPU time of `profkit import` and `profkit report` inside the
process, which other processes of the machine hardly change.
The ratio of a case is that of the times of all its files, as the geometric mean over the turns with
its 95 % interval. Files for which the versions have other exit codes are listed. Exits 1 if this
version takes over 10 % longer for certain.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grown_trace import make_trace
from mutate_traces import mutate
from processes import bytecode_in, measure
from trace_samples import SOURCES

from profkit.analysis.estimate import student_95

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LIMIT = 1.10
NOTICEABLE_S = 0.02
"""Single files are compared if they take longer than this."""

_READ = """
import contextlib, io, json, os, pathlib, sys, time
from profkit.cli import main
def run(*command):
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(list(command))
        except SystemExit as stopped:
            code = stopped.code
        except Exception as error:
            code = type(error).__name__
    return code, time.process_time() - begun
found = []
for number, files in enumerate(json.load(open(sys.argv[1]))):
    folder = pathlib.Path(sys.argv[2], str(number))
    code, took = run("import", *files, "-o", str(folder))
    runs = sorted(folder.iterdir()) if folder.exists() else []
    codes, reports = [], 0.0
    for each in runs:
        reported, seconds = run("report", str(each))
        codes.append(reported)
        reports += seconds
    found.append({"code": [code, *codes], "import_s": took, "report_s": reports})
print(json.dumps(found))
"""
"""Reads each group of files with whichever profkit the interpreter has."""


@dataclass
class Times:
    """What a version took for each group of files, over the turns."""

    import_s: list[list[float]] = field(default_factory=list)
    report_s: list[list[float]] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    codes: list[list[Any]] = field(default_factory=list)


def traces(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    """Return the traces of PyTorch; those of one job's ranks are read together."""
    found: list[list[Path]] = []
    for each in sorted(options.data.glob("kineto/*")):
        files = sorted(each.iterdir())
        found += [files] if len(files) > 1 else [[file] for file in files]
    return found


def exports(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    return [[file] for file in sorted(options.data.glob("nsys/*.sqlite"))]


def logs(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    return [[file] for file in sorted(options.data.glob("logs/**/*")) if file.is_file()]


def large_trace(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    source = options.data / "kineto" / "resnet_2080ti" / "resnet_kineto.json.gz"
    if not source.exists():
        return []
    path = folder / "large.json"
    make_trace(source, path, options.megabytes * 10**6)
    return [[path]]


def large_log(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    """Repeat the largest log to a fifth of the size: lines take longer than events."""
    files = sorted(logs(folder, options), key=lambda files: files[0].stat().st_size)
    if not files:
        return []
    text = files[-1][0].read_bytes()
    path = folder / "large.log"
    path.write_bytes(text * max(1, options.megabytes * 10**6 // 5 // len(text)))
    return [[path]]


def damaged_traces(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    found = []
    for form, (_, make, suffix) in SOURCES.items():
        chance, content = random.Random(form), make()
        for number in range(options.damaged):
            path = folder / f"{form}-{number}-rank0{suffix}"
            path.write_bytes(mutate(content, chance))
            found.append([path])
    return found


def damaged_logs(folder: Path, options: argparse.Namespace) -> list[list[Path]]:
    """Damage each log once."""
    found = []
    for number, (file,) in enumerate(logs(folder, options)):
        path = folder / f"{number}-{file.name}"
        path.write_bytes(mutate(file.read_bytes(), random.Random(number)))
        found.append([path])
    return found


CASES: Mapping[str, Callable[[Path, argparse.Namespace], list[list[Path]]]] = {
    "PyTorch's traces": traces,
    "one trace, repeated": large_trace,
    "Nsight Systems exports": exports,
    "training logs": logs,
    "one log, repeated": large_log,
    "damaged traces": damaged_traces,
    "damaged logs": damaged_logs,
}


def compare(name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Read the files of a case in turns; return the ratios, or nothing if there are no files."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        groups = CASES[name](folder, options)
        if not groups:
            return None
        listed = folder / "groups.json"
        listed.write_text(json.dumps([list(map(str, files)) for files in groups]))
        before, now = Times(), Times()
        times = {options.against: before, Path(sys.executable): now}
        for turn in range(options.turns + 1):
            for python in random.sample(list(times), 2):
                seen = _read(python, listed, folder)
                if turn:  # the first one compiles, and fills the cache of files
                    _keep(times[python], *seen)
        return {"case": name, "groups": len(groups), **_ratios(before, now, groups)}


def _read(python: Path, listed: Path, folder: Path) -> tuple[list[dict[str, Any]], float]:
    bytecode = folder / f"bytecode-{abs(hash(python))}"
    with contextlib.ExitStack() as stack:
        runs = folder / "runs"
        stack.callback(shutil.rmtree, runs, ignore_errors=True)
        command = [str(python), "-P", "-c", _READ, str(listed), str(runs)]
        cost = measure(command, bytecode_in(bytecode))
        return json.loads(cost.printed.splitlines()[-1]), cost.peak_mb


def _keep(times: Times, found: Sequence[Mapping[str, Any]], peak_mb: float) -> None:
    times.import_s.append([each["import_s"] for each in found])
    times.report_s.append([each["report_s"] for each in found])
    times.peak_mb.append(peak_mb)
    times.codes = [each["code"] for each in found]


def _ratios(before: Times, now: Times, groups: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """Return time and memory of this version as shares of the other one's."""
    found: dict[str, Any] = {"peak_ratio": round(_mean(now.peak_mb) / _mean(before.peak_mb), 3)}
    for what in ("import_s", "report_s"):
        theirs, ours = getattr(before, what), getattr(now, what)
        found[what] = {
            "before_s": round(statistics.median(map(sum, theirs)), 3),
            "now_s": round(statistics.median(map(sum, ours)), 3),
            **_interval(list(map(sum, theirs)), list(map(sum, ours))),
        }
        single = list(_single_files(theirs, ours, groups))
        found[what]["slowest"] = max(single, key=lambda each: each["low"], default=None)
    changed = []
    for files, theirs, ours in zip(groups, before.codes, now.codes, strict=True):
        if theirs != ours:
            changed.append({"file": files[0].name, "before": theirs, "now": ours})
    return {**found, "other_outcomes": changed}


def _single_files(
    theirs: Sequence[Sequence[float]],
    ours: Sequence[Sequence[float]],
    groups: Sequence[Sequence[Path]],
) -> Iterator[dict[str, Any]]:
    for files, before, now in zip(
        groups, zip(*theirs, strict=True), zip(*ours, strict=True), strict=True
    ):
        if _mean(before) > NOTICEABLE_S and all(now):
            yield {"file": files[0].name, **_interval(before, now)}


def _interval(before: Sequence[float], now: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean of the ratios of pairs, with its 95 % interval.

    A case whose files are all refused has no report to time.
    """
    if not all(before) or not all(now):
        return {}
    logs = [math.log(ours / theirs) for theirs, ours in zip(before, now, strict=True)]
    middle = statistics.fmean(logs)
    half = student_95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    ends = {"ratio": middle, "low": middle - half, "high": middle + half}
    return {name: round(math.exp(value), 3) for name, value in ends.items()}


def _commit_of(python: Path) -> str:
    """Return the commit of an environment's profkit, or its version outside of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        words = "import profkit; print(profkit.__version__, profkit.__path__[0])"
        command = [str(python), "-P", "-c", words]
        version, _, place = measure(command, bytecode_in(Path(folder))).printed.partition(" ")
    command = ["git", "-C", place.strip(), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or version


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--turns", type=int, default=9, help="at least 2 (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--damaged", type=int, default=40, help="traces of each form")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    found = []
    for name in options.cases:
        print(f"-- {name}", file=sys.stderr)
        case = compare(name, options)
        if case is not None:
            found.append(case)
    print(json.dumps({"earlier": _commit_of(options.against), "cases": found}, indent=1))
    lows = [case[what].get("low", 0.0) for case in found for what in ("import_s", "report_s")]
    return 1 if max(lows, default=0.0) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
