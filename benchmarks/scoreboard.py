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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import figures
from plot import Line, plot

from profkit.text import plural

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = DOCS / "performance" / "results.json"
PAGE = DOCS / "performance.md"
PACKAGES = ("profkit", "torch", "pyarrow", "numpy", "textual")

Found = Any
"""The JSON output of a benchmark."""


@dataclass(frozen=True)
class Benchmark:
    """One script, the text of its section, and the layout of its rows."""

    title: str
    says: str
    columns: Sequence[str]
    rows: Callable[[Found], Iterable[Sequence[str]]]
    arguments: Sequence[str] = ()
    short: Sequence[str] = ()
    """The arguments for a run that only shows that it works."""
    plots: Callable[[Found], Mapping[str, str]] = lambda found: {}


def ms(value: float) -> str:
    return f"{value:.3f} ms" if value < 1 else f"{value:.2f} ms"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def overhead_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, rows in found["cases"].items():
        bare = rows["bare"]["median_ms"]
        for name in ("profkit", "its writer", "record_function", "torch.profiler"):
            row = rows[name]
            yield (
                case,
                name,
                ms(bare),
                ms(row["over_bare_ms"]),
                f"{ms(row['low_ms'])} to {ms(row['high_ms'])}",
                f"{100 * row['over_bare_ms'] / bare:.1f} %",
            )


def ddp_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, row in found["cases"].items():
        for name in ("profkit", "allreduce_hook"):
            for kind, measured in (("median", "median_ms"), ("mean", "mean_ms")):
                cost = row[name][measured]
                interval = f"{ms(cost['low_ms'])} to {ms(cost['high_ms'])}"
                bare = ms(row["bare_median_ms"])
                yield case, name, kind, str(row["pairs"]), bare, ms(cost["added_ms"]), interval


def collector_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, rows in found["cases"].items():
        bare = rows["bare"]["median_ms"]
        for name in (
            "profkit",
            "collectors",
            "collectors alone",
            "their threads",
            "torch.profiler",
        ):
            row = rows[name]
            yield (
                case,
                name,
                ms(bare),
                ms(row["over_bare_ms"]),
                f"{ms(row['low_ms'])} to {ms(row['high_ms'])}",
                f"{100 * row['over_bare_ms'] / bare:.1f} %",
            )
    for name, cost in found["threads_ms_per_s"].items():
        yield f"thread of `{name}`", "collectors", "-", f"{cost:.2f} ms per second", "-", "-"


def link_rows(found: Found) -> Iterable[Sequence[str]]:
    for row in found["sizes"]:
        for case in ("alone", "links in a step", "overlapped"):
            held = row[case]
            links = f"{row['links_bytes_per_s'] / 1e6:,.0f} MB/s"
            if held["ratio"] is not None:
                yield (
                    f"{row['bytes'] / 1e6:.1f} MB",
                    case,
                    links,
                    f"{held['ratio']:.2f}",
                    f"{held['low']:.2f} to {held['high']:.2f}",
                )


def loader_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, row in found.items():
        if "loop_processor_added_us" in row:
            yield (
                case,
                f"{row['loop_processor_bare_us']:.1f} us",
                f"{row['loop_processor_added_us']:.1f} us",
                f"{row['loop_processor_ratio']:.2f}",
            )
        else:
            yield case, "-", f"{row['processor_added_us']:.1f} us", "-"


def startup_rows(found: Found) -> Iterable[Sequence[str]]:
    for command, row in found.items():
        yield (
            f"`{command}`",
            ms(row["median_ms"]),
            ms(row["over_bare_ms"]),
            f"{row['ratio_to_bare']:.2f}",
        )


def open_rows(found: Found) -> Iterable[Sequence[str]]:
    for command, row in found.items():
        if isinstance(row, dict) and "median_s" in row:
            yield f"`{command}`", seconds(row["median_s"]), f"{row['peak_mb']:.0f} MB"


def import_rows(found: Found) -> Iterable[Sequence[str]]:
    for size in found:
        for kind in ("plain", "gzipped", "hta"):
            if kind in size:
                name = "HTA, plain" if kind == "hta" else f"profkit, {kind}"
                yield (
                    f"{size['megabytes']:,} MB, {size['duration_events']:,} events",
                    name,
                    seconds(size[kind]["wall_s"]),
                    f"{size[kind]['peak_mb']:,} MB",
                )
        yield (
            f"{size['megabytes']:,} MB",
            "stored",
            f"{size['stored_bytes_an_event']} bytes per event",
            "-",
        )
        if "times_faster" in size:
            yield (
                f"{size['megabytes']:,} MB",
                "profkit compared with HTA",
                f"{size['times_faster']} times faster",
                f"{size['times_smaller']} times smaller",
            )


def growth_rows(found: Found) -> Iterable[Sequence[str]]:
    for row in found["rows"]:
        yield (
            plural(row["size"], row["grows"].removesuffix("s")),
            *(
                f"{seconds(row[name]['median_s'])}, {row[name]['peak_mb']:.0f} MB"
                for name in GROWTH
            ),
        )


def interface_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, row in found["cases"].items():
        yield (
            case,
            seconds(row["first_frame_s"]),
            f"{row['key_median_ms']:.0f} ms",
            f"{row['key_p95_ms']:.0f} ms",
            f"{row['peak_memory_bytes'] / 1e6:,.0f} MB",
        )


def timeline_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, row in found.items():
        if isinstance(row, dict) and case != "limits":
            yield (
                case,
                seconds(row["first_frame_s"]),
                f"{row['key_median_ms']:.0f} ms",
                f"{row['key_p95_ms']:.0f} ms",
                f"{row['peak_mb']:,.0f} MB",
            )


def rank_rows(found: Found) -> Iterable[Sequence[str]]:
    for row in found["rows"]:
        ways = [name for name in ("serial", "threads", "dask") if name in row]
        for way in ways:
            yield (
                f"{row['what']} of {row['ranks']:,} ranks",
                way,
                seconds(row[way]["median_s"]),
                f"{row[way]['peak_mb']:.0f} MB",
                "yes" if row["same_bytes"] else "**no**",
            )


GROWTH = ("report", "explain", "import pyarrow, numpy")


def growth_plots(found: Found) -> Mapping[str, str]:
    return {
        grows: plot(f"whole process, by {grows}", grows, "seconds", list(_lines(found, grows)))
        for grows in ("steps", "ranks", "kernels")
    }


def _lines(found: Found, grows: str) -> Iterable[Line]:
    rows = [row for row in found["rows"] if row["grows"] == grows]
    for name in GROWTH:
        yield Line(name, [(row["size"], row[name]["median_s"]) for row in rows])


BOARD: Mapping[str, Benchmark] = {
    "overhead": Benchmark(
        "Cost of recording per training step",
        "Four processes run one after the other. In each, modes alternate in short blocks of "
        "steps on one model, in a random order. The row `profkit` is the cost of its hooks plus "
        "the cost of its writer. The cost of the hooks comes from these blocks. The cost of the "
        "writer comes from one long run, which compares steps during a flush with their "
        "neighbours. Added time is wall time. The 95 % interval covers all blocks or the means "
        "of the processes, whichever is wider. glibc is set to keep freed memory, because "
        "trimming it moves large steps by about 0.1 ms in any mode. The limits for the mean are "
        "0.15 ms per step, and 1 % of the longest step. If the interval contains a limit, the "
        "next run may be over it.",
        ("step", "mode", "bare step", "added", "interval", "of the step"),
        overhead_rows,
        ("--processes", "4", "--keep-heap", "--turns", "20"),
        ("--turns", "3"),
    ),
    "ddp": Benchmark(
        "Cost of recording per short DDP step",
        "Whole processes on two ranks over gloo alternate: bare, under `profkit run` with its "
        "collectors, and with torch's own `allreduce_hook`. The figure of a process is the "
        "median or the mean of its steps after the first 1,500. The table shows the mean "
        "difference from bare over all kept pairs, with its 95 % interval. "
        "[The file of pairs](performance/ddp_pairs.json) has their dates. The limit is 0.15 ms for "
        "the median. These steps exclude the one-time cost of opening the files, which each run's "
        "report shows.",
        ("step", "mode", "by", "pairs", "bare step", "added", "interval"),
        ddp_rows,
        ("--pairs", "4", "--keep", "docs/performance/ddp_pairs.json"),
        ("--pairs", "1", "--steps", "300"),
    ),
    "collectors": Benchmark(
        "Cost of collectors outside kernel windows",
        "The method is that of the cost per training step, with every collector on its thread "
        "and a plan for kernel windows. `profkit` and `collectors` come from blocks and exclude "
        "the writer. `collectors alone` is their difference in pairs of blocks. `their threads` "
        "comes from one long run, which compares steps during a reading with their neighbours. "
        "The limits are 1 % of a step, and 1 % of a CPU for all threads.",
        ("step", "mode", "bare step", "added", "interval", "of the step"),
        collector_rows,
        ("--processes", "4", "--keep-heap", "--turns", "10"),
        ("--turns", "3", "--block-ms", "100"),
    ),
    "collectives": Benchmark(
        "Gradient exchange compared with its links",
        "ResNet50 trains in DDP on two ranks over gloo. This alternates with all-reduces of the "
        "same sizes, as `profkit ceilings --links` runs them. `alone`: the backward waits for "
        "each bucket. `links in a step`: a message of the link test replaces the bucket. "
        "`overlapped`: the backward continues during the exchange. The limit is 10 % for buckets "
        "alone.",
        ("bucket", "exchanged", "links", "bus bandwidth to links", "interval"),
        link_rows,
        short=("--turns", "3", "--image-size", "32", "--batch-size", "2"),
    ),
    "loader": Benchmark(
        "Cost of timing the data loader, per batch",
        "The table shows the CPU time of the training loop. PyTorch's loader makes minimal "
        "batches, with and without profkit.",
        ("loader", "bare", "added", "ratio"),
        loader_rows,
    ),
    "startup": Benchmark(
        "Start-up",
        "Each command alternates with the bare interpreter.",
        ("command", "median", "over the interpreter", "ratio"),
        startup_rows,
    ),
    "open_trace": Benchmark(
        "Opening a run of 32 ranks x 1,000 steps",
        "Whole processes alternate. The limits are 1 s and 250 MB.",
        ("command", "median", "peak memory"),
        open_rows,
    ),
    "import": Benchmark(
        "Importing PyTorch's traces",
        "profkit reads a real trace that is repeated to the given size, plain and gzipped. "
        "HolisticTraceAnalysis reads the same file if it is installed.",
        ("file", "what", "time", "memory"),
        import_rows,
        short=("--megabytes", "20", "--repeats", "1"),
    ),
    "tui": Benchmark(
        "Response time of the terminal interface",
        "Textual's pilot drives whole processes. The limit is 1 s to the first frame of a "
        "folder. For a run, the limits are 1.5 s and 1.5 GB. For a key, the limit is 100 ms.",
        ("shown", "first frame", "key, median", "95th percentile", "peak memory"),
        interface_rows,
    ),
    "timeline": Benchmark(
        "The timeline of 32 ranks x 1 M kernels",
        "As above, from phases down to every kernel of all ranks.",
        ("shown", "first frame", "key, median", "95th percentile", "peak memory"),
        timeline_rows,
    ),
    "ranks": Benchmark(
        "Explaining runs of many ranks",
        "Whole processes alternate: in one process, on its threads, and on a local Dask cluster "
        "if Dask is installed. All must give the same bytes.",
        ("what", "on", "median", "peak memory", "same bytes"),
        rank_rows,
        ("--ranks", "32", "1024", "--steps", "50", "--repeats", "1"),
        ("--ranks", "8", "--steps", "20", "--repeats", "1"),
    ),
    "growth": Benchmark(
        "Growth of costs",
        "In these synthetic runs, one size grows. The others stay at one rank, 200 steps and no "
        "kernels. The table shows median time and peak memory of whole processes. The peer only "
        "imports.",
        ("run", *(f"`{name}`" for name in GROWTH)),
        growth_rows,
        plots=growth_plots,
    ),
}


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
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
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
        "command": " ".join(["python", f"benchmarks/{name}.py", *arguments]),
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
    machine = f"{result['machine']}, load {result['load']} at its end"
    yield f"`{result['command']}`, {result['date']}, {state}; {machine}; {versions}."


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
        print(f"== {name}", file=sys.stderr)
        found = run(name, BOARD[name].arguments)
        failed |= found is None or not found["within_limits"]
        if found is not None:
            results[name] = found
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    figures.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
