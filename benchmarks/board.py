"""The benchmarks of docs/performance.md: what each is about, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from board_rows import (
    GROWTH,
    Found,
    against_rows,
    collector_rows,
    ddp_rows,
    growth_plots,
    growth_rows,
    import_rows,
    interface_rows,
    link_rows,
    loader_rows,
    open_rows,
    overhead_rows,
    rank_rows,
    stack_rows,
    startup_rows,
    timeline_rows,
)

EARLIER = "../base/.venv/bin/python"
"""An environment with an earlier version."""


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
    needs: str = ""
    """A file, from the repository's top, without which the benchmark is skipped."""
    script: str = ""
    """The script, if it has another name than the benchmark."""
    pooled: str = ""
    """The mode of which all runs are kept and pooled."""
    replaced: int = 0
    """The number of the first runs that measured code which was replaced."""
    replaced_code: str = ""
    """What they measured."""


BOARD: Mapping[str, Benchmark] = {
    "overhead": Benchmark(
        "Cost of recording per training step",
        "Four processes run one after the other. In each, modes alternate in short blocks of "
        "steps on one model, in a random order. The row `profkit` is the cost of its hooks plus "
        "the cost of its writer. The cost of the hooks comes from these blocks. The cost of the "
        "writer comes from one long run, which compares steps during a flush with their "
        "neighbours. Since 2026-11-25, the same comparison is made without the thread, and its "
        "result is subtracted, because a long step is more likely to contain a flush. "
        "Added time is wall time. The 95 % interval covers all blocks or the means "
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
        "median or the mean of its steps after the first 1,000. Each rank's training thread keeps "
        "a processor of its own, because its median is otherwise one of two values that differ by "
        "half, by chance. The table shows the mean "
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
    "stacks": Benchmark(
        "Cost of `--stacks`",
        "The method is that of the cost of collectors, but the only collector is the sampler of "
        "stacks, which runs only if it is asked for. `with stacks` is the whole cost: profkit's "
        "hooks and its writer, and the sampler's thread (`their threads`). The limits are those of "
        "a training step. The speed of the machine differs from day to day: compare the bare steps "
        "with those of the other tables. Of the runs that are not *before*, the first processed "
        "the notes of 8 steps below 25 ms together; it is 16 steps or about 0.2 s now.",
        ("step", "mode", "bare step", "added", "interval", "of the step"),
        stack_rows,
        ("--stacks", "--processes", "8", "--turns", "15", "--keep-heap"),
        ("--stacks", "--turns", "3", "--block-ms", "100"),
        script="collectors",
        pooled="with stacks",
        replaced=11,
        replaced_code="the cost without the writer, the first nine of them with a sampler that "
        "waited for the interpreter to see a line, and the first five with earlier hooks, too",
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
    "against": Benchmark(
        "Import and report compared with an earlier version",
        "Processes of both versions read the same files alternately: the traces, exports and "
        "logs of the shared data, one of each repeated to 100 MB and 20 MB, and damaged ones. "
        "The number of jobs is in parentheses. The ratio is that of the CPU times of all files "
        "together, as the geometric mean over the turns. A ratio below 1 is faster now. "
        "`other outcome` counts files for which the versions have other exit codes. The limit "
        "is 1.10.",
        ("files", "what", "before", "now", "ratio", "interval", "memory", "other outcome"),
        against_rows,
        ("--against", EARLIER, "--turns", "3", "--damaged", "20"),
        ("--against", EARLIER, "--turns", "2", "--cases", "Nsight Systems exports"),
        needs=EARLIER,
    ),
}
