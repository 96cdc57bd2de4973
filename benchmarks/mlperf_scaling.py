"""Predict the third size of MLPerf's results from two, as `profkit whatif --base --ranks` does.

    python benchmarks/mlperf_scaling.py ../shared/data/mlperf [--write]

A family is an organisation's runs of one benchmark on one kind of GPU. The folder holds logs, and
`repeats.parquet` with the series of others, which become logs again. All sizes of a family that
share a batch, of a rank or of all ranks, take part: two of them predict each third. A truth is the
throughput that the third run's own log states. `--write` writes docs/results/mlperf_scaling.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import results

from profkit.analysis.overview import build_overview
from profkit.errors import UnreadableError
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.prediction import RANKS, Question
from profkit.importers.base import ImportOptions, Target
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace

SAME = 0.02
GPUS_OF_A_NODE = 8
_NODES = re.compile(r"(?:_|\.|^)n?(\d{1,4})(?:xXE|_v|$)|n(\d{1,4})(?=_|$)")
_GPU = re.compile(r"(?i)(g?b\d00|h\d00|l40s|v100|mi\d{3}x)")
_MARK = ':::MLLOG {{"time_ms": {ms}, "key": "{key}", "value": {value}, "metadata": {more}}}\n'


class Size(NamedTuple):
    """One run of a family."""

    family: tuple[str, str, str, str]
    ranks: int
    batch: float
    job: Job
    throughput: float


def read_logs(folder: Path, runs: Path) -> Iterator[Size]:
    """Yield the runs of all logs in a folder."""
    for path in sorted((folder / "logs").glob("*/*/*/*/result_*")):
        release, organisation, system, benchmark = path.parts[-5:-1]
        name = f"{release}-{organisation}-{system}-{benchmark}"
        if (runs / name).exists():
            continue  # one repeat of each
        yield from read_log(path, runs, name, (release, organisation, benchmark))


def read_log(path: Path, runs: Path, name: str, family: tuple[str, str, str]) -> Iterator[Size]:
    try:
        (made,) = IMPORTER.read([path], Target(runs, ImportOptions(name=name)))
        trace = Trace.open(made.run)
        job, view = read_job(trace), build_overview(trace)
    except (UnreadableError, ValueError):
        return
    config, gpus = trace.manifest.config, trace.manifest.environment.get("gpu_models")
    if gpus and (batch := config.get("global_batch_size")):
        kind = (*family, str(gpus[0]))
        ranks = trace.manifest.world_size
        yield Size(kind, ranks, float(batch), job, view.throughput.value)


def write_logs(folder: Path, into: Path) -> Iterator[tuple[Path, str, tuple[str, str, str]]]:
    """Write the series of other results as logs, with the description of their systems."""
    seen = set()
    for row in pq.read_table(folder / "repeats.parquet").to_pylist():
        release = row["round"].removeprefix("training_results_")
        key = release, row["organisation"], row["system"], row["benchmark"]
        nodes, gpu = _NODES.search(row["system"]), _GPU.search(row["system"])
        if key in seen or not nodes or not gpu:
            continue
        seen.add(key)
        above = into / release / row["organisation"]
        path = above / row["system"] / row["benchmark"] / "result_0.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines_of(row)))
        described = {
            "number_of_nodes": nodes[1] or nodes[2],
            "accelerators_per_node": str(GPUS_OF_A_NODE),
            "accelerator_model_name": gpu[1].upper(),
        }
        (above / "systems").mkdir(exist_ok=True)
        (above / "systems" / f"{row['system']}.json").write_text(json.dumps(described))
        yield path, "-".join(key), (release, row["organisation"], row["benchmark"])


def lines_of(row: dict[str, Any]) -> Iterator[str]:
    ms, batch = 1_700_000_000_000.0, row["global_batch"]
    yield _MARK.format(ms=int(ms), key="global_batch_size", value=batch, more="{}")
    yield _MARK.format(ms=int(ms), key="run_start", value="null", more="{}")
    for place, value in enumerate(row["series"]):
        step_s = value * batch if row["unit"] == "s per sample" else value
        ms += 10_000 * step_s
        stats = json.dumps({"train_step_time": step_s})
        more = json.dumps({"step": 10.0 * place + 9})
        yield _MARK.format(ms=int(ms), key="tracked_stats", value=stats, more=more)


def share_a_batch(sizes: Sequence[Size]) -> bool:
    """Return whether the ranks have the same batch in all sizes, or all ranks together have."""
    for batches in ([each.batch for each in sizes], [each.batch / each.ranks for each in sizes]):
        if max(batches) <= min(batches) * (1 + SAME):
            return True
    return False


def predict(first: Size, second: Size, third: Size) -> dict[str, Any]:
    found = ask(second.job, Question(RANKS, float(third.ranks)), first.job)
    row: dict[str, Any] = {
        "family": " ".join(third.family),
        "from": [first.ranks, second.ranks],
        "ranks": third.ranks,
        "comparable": share_a_batch([first, second, third]),
        "truth": third.throughput,
        "why": found.why,
    }
    step = found.step_ns
    if step is None:
        return row
    per_s = found.samples * 1e9
    row["predicted"] = per_s / step.value
    row["error"] = row["predicted"] / third.throughput - 1
    if step.low and step.high:
        row["low"], row["high"] = per_s / step.high, per_s / step.low
        row["holds"] = row["low"] <= third.throughput <= row["high"]
    return row


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(argv)
    families: dict[tuple[str, ...], dict[int, Size]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        for size in read_logs(options.folder, made / "runs"):
            families[size.family].setdefault(size.ranks, size)
        for path, name, family in write_logs(options.folder, made / "logs"):
            for size in read_log(path, made / "series", name, family):
                families[size.family].setdefault(size.ranks, size)
        rows = []
        for sizes in families.values():
            for first, second, third in itertools.combinations(
                sorted(sizes.values(), key=_ranks), 3
            ):
                rows += [predict(first, second, third), predict(first, third, second)]
    sums = summarise(rows)
    for row in rows:
        print(describe(row))
    print(json.dumps(sums, indent=2))
    if options.write:
        several = sum(len(sizes) > 1 for sizes in families.values())
        results.write("mlperf_scaling", {"families": several, "sums": sums, "predictions": rows})
    return 0


def _ranks(size: Size) -> int:
    return size.ranks


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for name, chosen in (
        ("all", rows),
        ("one batch", [row for row in rows if row["comparable"]]),
        ("larger", [row for row in rows if row["comparable"] and row["ranks"] > max(row["from"])]),
    ):
        known = [row for row in chosen if "error" in row]
        held = [row["holds"] for row in known if "holds" in row]
        found[name] = {
            "predictions": len(chosen),
            "answered": len(known),
            "conclusive": sum(not row["why"] for row in chosen),
            "median_error": statistics.median(abs(row["error"]) for row in known)
            if known
            else None,
            "largest_error": max((abs(row["error"]) for row in known), default=None),
            "intervals": len(held),
            "intervals_with_truth": sum(held),
        }
    return found


def describe(row: dict[str, Any]) -> str:
    few, many = row["from"]
    words = f"{row['family']}: {few}, {many} -> {row['ranks']}: "
    if "error" in row:
        words += f"{row['predicted']:.5g} of {row['truth']:.5g} ({row['error']:+.1%})"
        if "holds" in row:
            words += f", {row['low']:.5g} to {row['high']:.5g}"
            words += "" if row["holds"] else " MISSED"
    return words + (f"; {row['why']}" if row["why"] else "")


if __name__ == "__main__":
    sys.exit(main())
