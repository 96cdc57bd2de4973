"""Score predictions on recorded jobs: planted faults, logs of several GPU counts, many ranks."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from profkit import cli
from profkit.errors import ProfkitError
from profkit.explain.explained import explain_sides
from profkit.explain.predict.ask import ask
from profkit.explain.predict.job import Job, read_job
from profkit.explain.predict.prediction import RANKS, WITHOUT, Prediction, Question
from profkit.testing.synthetic import synthetic_trace
from profkit.text import duration, percent, plural, signed
from profkit.trace import RunManifest, Trace
from profkit.trace.folders import find_runs
from profkit.vocab import RunState

sys.path.insert(0, str(Path(__file__).parent / "faults"))

MOST_LOGS = 200


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
        if not self.answer.conclusive:
            outcome = f"inconclusive: {self.answer.why}"
        return f"| {' | '.join([*cells, outcome])} |"


HEADER = (
    "| job | question | recorded | predicted | interval | truth | error | outcome |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def table(scored: Iterable[Scored]) -> str:
    return HEADER + "\n".join(each.row() for each in scored) + "\n"


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


# -- logs ------------------------------------------------------------------------------------------


def logs(data: Path) -> str:
    """Predict more GPUs from the logs of fewer, wherever the same job has several logs."""
    scored, series = [], dict[tuple[str, ...], dict[int, Path]]()
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(path for path in data.rglob("*") if path.is_file())[:MOST_LOGS]:
            for run in _import(file, Path(folder) / str(len(list(Path(folder).iterdir())))):
                trace = Trace.open(run)
                config, devices = trace.manifest.config, trace.manifest.environment
                named = {"A100", "V100"} & set(file.parts)
                model = str(devices.get("gpu_models") or " ".join(named))
                if "batch_size" in config and trace.steps.num_rows:
                    setting = (str(config.get("precision")), f"batch {config['batch_size']}", model)
                    key = (file.relative_to(data).parts[0], *setting)
                    series.setdefault(key, {}).setdefault(trace.manifest.world_size, run)
        for setting_of, runs in sorted(series.items()):
            name = " ".join(filter(None, setting_of))
            scored += list(_score_series(name, runs))
    return (
        "Logs of one system, precision and batch per GPU. From one log, more GPUs are "
        "inconclusive; from two, the loss is extended to a third.\n\n"
        f"{summary(scored)}\n{table(scored)}"
    )


def _import(file: Path, folder: Path) -> list[Path]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main(["import", str(file), "-o", str(folder)])
    return find_runs(folder) if folder.is_dir() else []


def _score_series(name: str, runs: dict[int, Path]) -> Iterator[Scored]:
    counts, jobs = sorted(runs), dict[int, Job]()
    for count in counts:
        with contextlib.suppress(ProfkitError, ValueError):
            jobs[count] = job_of(runs[count])
    known = sorted(jobs)
    for place, wanted in enumerate(known[1:], start=1):
        smaller = known[:place]
        job, base = jobs[smaller[-1]], jobs[smaller[-2]] if place > 1 else None
        answer = ask(job, Question(RANKS, float(wanted)), base)
        label = f"{name}: {' and '.join(map(str, smaller[-2:]))} to {wanted}"
        yield Scored(label, answer, jobs[wanted].now_ns.value)


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
