"""Score predictions: published replays, planted faults, settings, logs, and many ranks.

    python benchmarks/whatif.py [SECTION ...] [--data FOLDER] [--work FOLDER] [--write]

Sections are `replays`, `planted`, `experiments`, `settings`, `logs` and `ranks`; the default is
`replays`.
`--data` is the folder of public data: its `straggler` has traces and results of
StragglerAnalysis, its `logs` training logs. `--work` has the pairs of benchmarks/faults for
`planted`, and the runs of `experiments` and `settings`, which record what is missing. `--write`
replaces these sections of docs/whatif.md and keeps the rest. It exits with 1 if a published
figure differs by more than one part in a million.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import whatif_cases
import whatif_experiments
import whatif_settings

from profkit.analysis.whatif.replay import prepare
from profkit.analysis.whatif.slowdown import Slowdown, find_slowdown
from profkit.importers.straggler.table import read_operations

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
DOCUMENT = ROOT / "docs" / "whatif.md"
LIMIT = 1e-6
"""The published figures were computed in 32 bits, which is exact to about a tenth of this."""
REPEATS = 5

SECTIONS = ("replays", "planted", "experiments", "settings", "logs", "ranks")

HEAD = """`profkit.analysis.whatif` replays the steps of a hybrid-parallel job, with measured or
with ideal durations of its operations. The table compares it with the published results of
StragglerAnalysis, the artifact of "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025). Its dependency model and definitions are those of that artifact. The
difference is the largest one of all values in a row.

| job | figure | values | published | profkit | relative difference |
|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """A figure of a job: the published values, and those of profkit."""

    name: str
    published: Sequence[float]
    ours: Sequence[float]

    @property
    def difference(self) -> float:
        ratio = np.asarray(self.ours) / np.asarray(self.published)
        return float(np.abs(ratio - 1).max())


def compare(folder: Path, job: str, found: Slowdown) -> Iterator[Row]:
    """Yield the figures of a job."""
    results = _read(folder / f"result-{job}.json")
    steps = [str(step) for step in found.steps]
    for name, words, times in (
        ("step_t_base", "measured steps, s", found.measured_ns),
        ("step_t_nodelay", "replayed steps, s", found.replayed_ns),
        ("step_t_noblk", "ideal steps, s", found.ideal_ns),
    ):
        yield Row(words, [results[name][step] for step in steps], (times / 1e9).tolist())
    yield Row("slowdown S", [results["blocking_slowdown"]], [found.whole])
    for name, words, parts in (
        ("optype", "slowdown by type S_t", found.by_kind),
        ("dp_rank", "slowdown by data-parallel rank", found.by_data_rank),
        ("stage", "slowdown by stage", found.by_stage),
    ):
        published = results[f"blocking_decompose_by_{name}"]
        yield Row(words, [published[str(label)] for label in parts], list(parts.values()))
    for name, words, share in (
        ("ms", "share of the last stage M_S", found.last_stage_share),
        ("mw", "share of the slowest workers M_W", found.slowest_workers_share),
    ):
        published = _read(folder / f"{name}-{job}.json")[name.capitalize()]
        yield Row(words, [published], [share])


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def time_job(folder: Path, job: str) -> tuple[Slowdown, int, float]:
    """Return the slowdown of a job, its operations, and the shortest time that it took."""
    operations = read_operations(folder / f"trace-{job}.parquet")
    took = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        found = find_slowdown(prepare(operations))
        took.append(time.perf_counter() - begin)
    return found, len(operations.kind), min(took)


def replays(data: Path) -> tuple[str, bool]:
    """Return the comparison with published figures, and whether all of them are met."""
    folder = data / "straggler"
    jobs = sorted(path.stem.partition("-")[2] for path in folder.glob("trace-*.parquet"))
    lines, timed, worst = [], [], 0.0
    for job in jobs:
        found, operations, seconds = time_job(folder, job)
        for row in compare(folder, job, found):
            worst = max(worst, row.difference)
            means = [f"{np.mean(values):.6g}" for values in (row.published, row.ours)]
            cells = [job, row.name, f"{len(row.ours)}", *means, f"{row.difference:.1e}"]
            lines.append(f"| {' | '.join(cells)} |")
        timed.append(
            f"- {job}: {operations:,} operations of {len(found.steps)} steps took {seconds:.2f} s "
            f"to replay, in all scenarios. Replayed steps differ from measured ones by "
            f"{100 * found.replay_error:.2f} % on average."
        )
    machine = f"Python {platform.python_version()} on {platform.machine()}, one thread."
    tail = ["", "With several values, the columns have their mean.", "", *timed, "", machine, ""]
    return HEAD + "\n".join([*lines, *tail]), bool(jobs) and worst <= LIMIT


def write_section(name: str, text: str) -> None:
    """Replace a section of the page between its two marks."""
    page = DOCUMENT.read_text()
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{DOCUMENT}: has no marks of the section {name}")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    DOCUMENT.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-whatif"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    is_met = True
    for name in arguments.sections or ("replays",):
        if name not in SECTIONS:
            raise SystemExit(f"no such section: {name}; there are {', '.join(SECTIONS)}")
        if name == "replays":
            text, is_met = replays(arguments.data)
        elif name == "planted":
            text = whatif_cases.planted(arguments.work)
        elif name == "experiments":
            text = whatif_experiments.experiments(arguments.work)
        elif name == "settings":
            text = whatif_settings.settings(arguments.work)
        elif name == "logs":
            text = whatif_cases.logs(arguments.data / "logs")
        else:
            text = whatif_cases.ranks()
        if arguments.write:
            write_section(name, text)
        print(text)
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
