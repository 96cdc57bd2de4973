"""The rows and plots of each benchmark's section in docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plot import Line, plot

from profkit.text import plural

Found = Any
"""The JSON output of a benchmark."""


def ms(value: float) -> str:
    return f"{value:.3f} ms" if value < 1 else f"{value:.2f} ms"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def overhead_rows(found: Found) -> Iterable[Sequence[str]]:
    return _added_rows(found, ("profkit", "its writer", "record_function", "torch.profiler"))


def _added_rows(found: Found, modes: Sequence[str]) -> Iterable[Sequence[str]]:
    """Yield the time that each mode adds to the steps of each case."""
    for case, rows in found["cases"].items():
        bare = rows["bare"]["median_ms"]
        for name in modes:
            if name not in rows:  # of a run from before this was measured
                continue
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
    modes = ("profkit", "collectors", "collectors alone", "their threads", "torch.profiler")
    yield from _added_rows(found, modes)
    yield from _thread_rows(found)


def stack_rows(found: Found) -> Iterable[Sequence[str]]:
    yield from _added_rows(found, ("with stacks", "its writer", "their threads", "torch.profiler"))
    yield from _thread_rows(found)


def _thread_rows(found: Found) -> Iterable[Sequence[str]]:
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
        yield _answer_row(case, row, row["peak_memory_bytes"] / 1e6)


def timeline_rows(found: Found) -> Iterable[Sequence[str]]:
    for case, row in found.items():
        if isinstance(row, dict) and case != "limits":
            yield _answer_row(case, row, row["peak_mb"])


def _answer_row(case: str, row: Mapping[str, float], peak_mb: float) -> Sequence[str]:
    """Return how long the terminal interface takes to open and to answer a key."""
    return (
        case,
        seconds(row["first_frame_s"]),
        f"{row['key_median_ms']:.0f} ms",
        f"{row['key_p95_ms']:.0f} ms",
        f"{peak_mb:,.0f} MB",
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


def against_rows(found: Found) -> Iterable[Sequence[str]]:
    yield "the earlier version", f"commit {found['earlier']}", "-", "-", "-", "-", "-", "-"
    for case in found["cases"]:
        for what, words in (("import_s", "import"), ("report_s", "report")):
            row = case[what]
            if "ratio" in row:
                yield (
                    f"{case['case']} ({case['groups']:,})",
                    words,
                    seconds(row["before_s"]),
                    seconds(row["now_s"]),
                    f"{row['ratio']:.2f}",
                    f"{row['low']:.2f} to {row['high']:.2f}",
                    f"{case['peak_ratio']:.2f}",
                    f"{len(case['other_outcomes']):,}",
                )
