"""Score predictions: planted faults, settings of a reference system, and many ranks.

    python benchmarks/whatif.py [SECTION ...] [--work FOLDER] [--write]

Sections are `planted`, `settings` and `ranks`; the default is `ranks`. `--work` has the pairs of
benchmarks/faults for `planted`, and the runs of `settings`. Those that are missing are recorded,
which takes a quiet machine and some minutes. `--write` replaces these sections of docs/whatif.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profkit.explain.explained import explain_sides
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.prediction import RANKS, WITHOUT, WORKERS, Prediction, Question
from profkit.testing.synthetic import synthetic_trace
from profkit.text import duration, percent, plural, signed
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_runs
from profkit.vocab import RunState

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "whatif.md"

USUAL = ("resnet50", "--image-size=32", "--steps=60", "--warmup=8", "--hang-after=0")

RUNS = {
    "1 rank": ("--batch-size=8", "--workers=0"),
    "2 ranks": ("--batch-size=8", "--workers=0", "--ranks=2"),
    "4 ranks": ("--batch-size=8", "--workers=0", "--ranks=4"),
    "0 workers": ("--batch-size=16", "--workers=0"),
    "1 worker": ("--batch-size=16", "--workers=1"),
    "2 workers": ("--batch-size=16", "--workers=2"),
}

ASKED = (
    ("1 rank", "", RANKS, 2, "2 ranks"),
    ("2 ranks", "", RANKS, 4, "4 ranks"),
    ("2 ranks", "1 rank", RANKS, 4, "4 ranks"),
    ("0 workers", "", WORKERS, 1, "1 worker"),
    ("0 workers", "", WORKERS, 2, "2 workers"),
    ("1 worker", "", WORKERS, 2, "2 workers"),
    ("1 worker", "", WORKERS, 0, "0 workers"),
    ("2 workers", "", WORKERS, 1, "1 worker"),
)
"""The run that is asked, the one that it may rest on as well, the question, and the truth."""


class Scored(NamedTuple):
    """A prediction, and the run in which the change was made."""

    name: str
    answer: Prediction
    truth_ns: float

    @property
    def error(self) -> float | None:
        step = self.answer.step_ns
        return step.value / self.truth_ns - 1 if step is not None else None

    @property
    def inside(self) -> bool | None:
        step = self.answer.step_ns
        if step is None or step.low is None or step.high is None:
            return None
        return step.low <= self.truth_ns <= step.high

    def row(self) -> str:
        step = self.answer.step_ns
        cells = [self.name, self.answer.question.words, duration(self.answer.now_ns.value)]
        if step is None:
            cells += ["-", "-", duration(self.truth_ns), "-"]
        else:
            interval = "-"
            if step.low is not None and step.high is not None:
                interval = f"{duration(step.low)} to {duration(step.high)}"
            cells += [duration(step.value), interval]
            cells += [duration(self.truth_ns), signed(self.error or 0.0, percent)]
        outcome = "inside" if self.inside else "**outside**"
        return f"| {' | '.join([*cells, outcome])} |"


HEADER = (
    "| job | question | recorded | predicted | interval | truth | error | outcome |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def table(scored: Iterable[Scored]) -> str:
    """Return the conclusive answers as a table."""
    return HEADER + "\n".join(each.row() for each in scored if each.answer.conclusive) + "\n"


def summary(scored: Sequence[Scored]) -> str:
    """Return the calibration of the conclusive answers, in a sentence."""
    sure = [each for each in scored if each.answer.conclusive]
    words = f"{len(sure)} of {plural(len(scored), 'question')} have a conclusive answer"
    if not sure:
        return f"{words}.\n"
    errors = [abs(each.error or 0.0) for each in sure]
    held, widths = sum(bool(each.inside) for each in sure), []
    for each in sure:
        step = each.answer.step_ns
        if step is not None and step.high is not None and step.low is not None:
            widths.append((step.high - step.low) / 2 / step.value)
    return (
        f"{words}. Their median error is {percent(float(np.median(errors)))}, the largest is "
        f"{percent(max(errors))}. {held} of {len(sure)} intervals hold the truth; half an interval "
        f"is {percent(float(np.median(widths)))} of the step in the median.\n"
    )


def job_of(run: Path) -> Job:
    return read_job(Trace.open(run))


def newest_run(folder: Path) -> Path | None:
    """Return the newest complete run of a folder."""
    for run in reversed(find_runs(folder) if folder.is_dir() else []):
        if RunManifest.read(run).state is RunState.COMPLETE:
            return run
    return None


# -- planted faults --------------------------------------------------------------------------------


def planted(work: Path) -> str:
    """Predict the healthy twin of each faulty run from that run alone."""
    scored, differences, skipped = [], list[float](), 0
    for name, base, target in _pairs(work):
        twin, faulty = job_of(base), job_of(target)
        truth = twin.now_ns.value
        if name.startswith("healthy"):
            differences.append(abs(faulty.now_ns.value / truth - 1))
            continue
        kind = _first_cause(twin, faulty)
        if kind is None:
            skipped += 1
            continue
        answer = ask(faulty, Question(WITHOUT, cause=kind))
        scored.append(Scored(name, answer, truth))
    noise = "-"
    if differences:
        middle, most = percent(float(np.median(differences))), percent(max(differences))
        noise = f"{middle} in the median, at most {most}"
    scored.sort(key=lambda each: (not each.answer.conclusive, each.name))
    return (
        f"{plural(len(scored), 'faulty run')} of `benchmarks/faults` and their healthy twins. The "
        "question is the first cause that `explain` finds in the pair; the answer is from the "
        f"faulty run alone. In {plural(skipped, 'pair')} `explain` finds no cause with a cost. "
        f"{plural(len(differences), 'pair')} of healthy twins differ by {noise}: no prediction "
        f"can be closer on this machine.\n\n{summary(scored)}\n{table(scored)}"
    )


def _pairs(work: Path) -> Iterator[tuple[str, Path, Path]]:
    for done in sorted(work.glob("*/*/*/done.json")):
        sides = []
        for side in ("base", "target"):
            runs = find_runs(done.parent / side)
            sides.append(runs[-1] if runs else None)
        if sides[0] is not None and sides[1] is not None:
            yield done.parent.name, sides[0], sides[1]


def _first_cause(twin: Job, faulty: Job) -> str | None:
    found = explain_sides([twin.evidence], [faulty.evidence])
    for cause in found.causes:
        if not cause.is_gain and cause.cost_ns is not None:
            return cause.kind
    return None


# -- ranks -----------------------------------------------------------------------------------------


def ranks() -> str:
    """Time the question about 1,024 ranks, and compare the tails with synthetic runs."""
    scored, lines = [], []
    with tempfile.TemporaryDirectory() as folder:
        few = synthetic_trace(Path(folder) / "8", ranks=8, steps=300, jitter=0.1)
        job = job_of(few)
        begin = time.perf_counter()
        answer = ask(job_of(few), Question(RANKS, 1_024.0))
        lines.append(
            f"From 8 synthetic ranks, the answer about 1,024 took "
            f"{time.perf_counter() - begin:.2f} s, with reading. {answer.knee.capitalize()}."
        )
        for count in (16, 32, 64):
            many = synthetic_trace(
                Path(folder) / str(count), ranks=count, steps=100, jitter=0.1, seed=count
            )
            asked = ask(job, Question(RANKS, float(count)))
            scored.append(Scored(f"8 to {count} ranks", asked, job_of(many).now_ns.value))
        most = synthetic_trace(Path(folder) / "1024", ranks=1_024, steps=20, jitter=0.1)
        begin = time.perf_counter()
        ask(job_of(most), Question(RANKS, 512.0))
        lines.append(
            f"From a run of 1,024 synthetic ranks and 20 steps, the answer about 512 took "
            f"{time.perf_counter() - begin:.2f} s, with reading."
        )
    return "\n".join([*lines, "", summary(scored), table(scored)])


# -- settings --------------------------------------------------------------------------------------


def settings(work: Path) -> str:
    """Record the missing runs, and return the section."""
    failed = record_missing(work)
    scored = list(_score(work))
    words = ""
    if failed:
        words = f" These could not be recorded here: {', '.join(failed)}."
    return (
        f"ResNet50 on the processors of one machine, `profkit trace {' '.join(USUAL)}`. Each "
        "answer is compared with a run in which the setting was changed; where two runs are "
        f"named, the second is `--base`.{words}\n\n{summary(scored)}\n{table(scored)}"
    )


def record_missing(work: Path) -> list[str]:
    """Record what is missing; return the names of the runs that failed."""
    failed = []
    for name, options in RUNS.items():
        folder = _folder(work, name)
        if not newest_run(folder):
            command = [sys.executable, "-m", "profkit", "trace", *USUAL, *options]
            done = subprocess.run([*command, "-o", str(folder)], capture_output=True, check=False)
            if done.returncode or not newest_run(folder):
                failed.append(name)
    return failed


def _score(work: Path) -> Iterator[Scored]:
    jobs: dict[str, Job] = {}
    for name in RUNS:
        run = newest_run(_folder(work, name))
        if run is not None:
            jobs[name] = job_of(run)
    for asked, base, kind, value, truth in ASKED:
        if {asked, truth} <= jobs.keys() and (not base or base in jobs):
            answer = ask(jobs[asked], Question(kind, float(value)), jobs.get(base))
            label = f"{asked} and {base}" if base else asked
            yield Scored(label, answer, jobs[truth].now_ns.value)


def _folder(work: Path, name: str) -> Path:
    return work / "settings" / name.replace(" ", "-")


SECTIONS: dict[str, Callable[[Path], str]] = {
    "planted": planted,
    "settings": settings,
    "ranks": lambda _work: ranks(),
}


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
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-whatif"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.sections or ("ranks",):
        if name not in SECTIONS:
            raise SystemExit(f"no such section: {name}; there are {', '.join(SECTIONS)}")
        text = SECTIONS[name](arguments.work)
        if arguments.write:
            write_section(name, text)
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
