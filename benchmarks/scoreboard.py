"""Run the benchmarks and write docs/performance.md: profkit's cost next to its peers.

    python benchmarks/scoreboard.py [--only overhead growth ...] [--render | --short]

Each benchmark is a process of its own and prints what it measured. The output is kept in
docs/performance/results.json with machine, versions and date, so that one benchmark can be repeated
alone. The page and its plots are made from that file, with `--render` without running anything.
`--short` runs a benchmark for about a minute, prints its section and keeps nothing. It shows that
the benchmark works; figures need a quiet machine. Exits 1 if a benchmark is over its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import figures
from board import BOARD, Benchmark
from pooled import all_runs, pooled_section

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = DOCS / "performance" / "results.json"
PAGE = DOCS / "performance.md"
PACKAGES = ("profkit", "torch", "pyarrow", "numpy", "textual")


INTRODUCTION = (
    "`make bench` (`python benchmarks/scoreboard.py`) makes this page from the benchmarks' "
    "output in [performance/results.json](performance/results.json). Next to every figure is "
    "a peer that was measured in the same run: the bare loop, PyTorch's own profiler, the "
    "interpreter, or HolisticTraceAnalysis. First comes the cost of recording, then the time "
    "to start, read, import and answer a key, then the growth with steps, ranks and kernels. "
    "Intervals are 95 % confidence intervals: an interval that contains zero shows no "
    "difference. Memory is the peak of the process. Below each table are the command, the "
    "machine and the versions. A benchmark marked **over its limit** exits 1 and is shown as "
    "it is."
)


def run(name: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return a benchmark's output with machine and date, or `None` if it is not JSON."""
    script = BOARD[name].script or name
    command = [sys.executable, str(HERE / f"{script}.py"), *arguments]
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=HERE.parent)
    try:
        found = json.loads(
            done.stdout[min(place for place in map(done.stdout.find, "{[") if place >= 0) :]
        )
    except ValueError:
        print(f"{name}: printed no JSON object (exit code {done.returncode})", file=sys.stderr)
        return None
    return {
        "found": found,
        "within_limits": done.returncode == 0,
        "command": " ".join(["python", f"benchmarks/{script}.py", *arguments]),
        "seconds": round(time.monotonic() - began),
        "date": time.strftime("%Y-%m-%d"),
        "machine": _machine(),
        "load": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(),
            **{package: _version(package) for package in PACKAGES},
        },
    }


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = f"{os.cpu_count()} cores, {memory / 2**30:.0f} GiB"
    if not Path("/proc/driver/nvidia").exists():
        machine += ", no GPU"
    return machine


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def render(results: Mapping[str, Any]) -> str:
    """Return the page, and write its plots next to it."""
    parts = ["# Performance", INTRODUCTION]
    for name, benchmark in BOARD.items():
        if name in results:
            parts += _section(name, benchmark, results[name])
        else:
            parts += [f"## {benchmark.title}", "Not measured yet."]
    return "\n\n".join(parts) + "\n"


def _section(
    name: str, benchmark: Benchmark, result: Mapping[str, Any], *, plots: bool = True
) -> Iterable[str]:
    yield f"## {benchmark.title}"
    yield benchmark.says
    rows = [benchmark.columns, ["---"] * len(benchmark.columns), *benchmark.rows(result["found"])]
    yield "\n".join("| " + " | ".join(row) + " |" for row in rows)
    for plot_name, svg in benchmark.plots(result["found"]).items() if plots else ():
        path = RESULTS.parent / f"{name}-{plot_name}.svg"
        path.write_text(svg, encoding="utf-8")
        yield f"![{benchmark.title}: {plot_name}]({path.relative_to(DOCS).as_posix()})"
    versions = ", ".join(
        f"{package} {number}" for package, number in result["versions"].items() if number != "-"
    )
    state = "within its limits" if result["within_limits"] else "**over its limit**"
    machine = result["machine"]
    if result.get("load") is not None:
        machine += f", load {result['load']} at its end"
    yield f"`{result['command']}`, {result['date']}, {state}; {machine}; {versions}."
    if benchmark.pooled:
        runs = all_runs(result, benchmark.pooled)
        yield from pooled_section(
            runs, benchmark.pooled, benchmark.replaced, benchmark.replaced_code
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(BOARD), default=list(BOARD))
    parser.add_argument("--render", action="store_true", help="only write the page again")
    parser.add_argument(
        "--short", action="store_true", help="try whether they work, and keep nothing"
    )
    options = parser.parse_args()
    if options.short:
        return show(options.only)
    return keep([] if options.render else options.only)


def show(names: Sequence[str]) -> int:
    """Run each briefly and print its section. Limits are ignored."""
    works = True
    for name in names:
        print(f"== {name}", file=sys.stderr)
        found = run(name, BOARD[name].short or BOARD[name].arguments)
        works &= found is not None
        if found is not None:
            print("\n\n".join(_section(name, BOARD[name], found, plots=False)), end="\n\n")
    return 0 if works else 1


def keep(names: Sequence[str]) -> int:
    """Run each, keep what it printed, and write the page."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    failed = False
    for name in names:
        if not (HERE.parent / BOARD[name].needs).exists():
            print(f"== {name}: skipped, {BOARD[name].needs} is missing", file=sys.stderr)
            continue
        print(f"== {name}", file=sys.stderr)
        found = run(name, BOARD[name].arguments)
        failed |= found is None or not found["within_limits"]
        if found is not None:
            if BOARD[name].pooled and name in results:
                found["earlier"] = all_runs(results[name], BOARD[name].pooled)
            results[name] = found
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    figures.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
