"""Reads a trainer's lines of names and values, with what is known of its tool."""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from profkit.importers.logs.dllogger import read_result
from profkit.importers.logs.grammar import FactBlock, Found, Grammar
from profkit.importers.logs.parsed import VARYING, EpochMean, Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time
from profkit.importers.logs.values import Figures, read_figures

RECORD = re.compile(
    r"(?i)\A(?=.{0,400}?(?:step|iter|it\b|batch|\bup(?:date)?|\bTrain: |\[ {0,6}\d{1,12}/"
    r"|images/sec))(?=.{0,600}?(?:tim[ei]|cost|seconds|ela[ps]|speed|ips|tps|wps|ups\b|throughput"
    r"|dt\b"
    r"|_s:|/s|per[ _]sec|\d ?ms|sec\b|ms/))(?=.{0,200}?\d)"
)
NO_TRAINING = re.compile(
    r"(?i)sav(?:ing|ed?) .{0,30}checkpoint"
    r"|(?<![\w/.-])(?:eval\w{0,10}|val|valid|validation|test|testing|infer\w{0,6})(?![\w/.-])"
)
_BAR = re.compile(r"\d%\|")
_RICH_BAR, _EPOCH_BAR = re.compile(r"━| • .{0,20}it/s"), re.compile(r"Epoch \d.{0,60}?[•━]")
"""Lightning's bars; that of a test has no epoch, and may overwrite other text."""
_NULLS = re.compile(r"\"\w{1,40}\": null,? ?")
_OF_TRAINING = re.compile(r"(?i)epoch|train|loss")
"""Words in a progress bar of a training; others load data."""
_BATCH = re.compile(
    r"(?i)(?:total train batch size.{0,60}|(?<![\w.])(?:train_)?batch[_ ]?size['\"]?|IMS_PER_BATCH)"
    r"\s{0,3}[:=]\s{0,3}(\d{1,9})(?![\d.])"
)
_TOTAL_BATCH = re.compile(r"(?i)total|global|Namespace")
_HEADING = re.compile(r"\s{0,4}Epoch:? \[?(\d{1,9}) ?[/|]")
_VIDEOS = re.compile(r"^video number: ?(\d{1,12})$")
_RESULTS = (
    ("| done training in", "time of the whole training", "s", "with validation"),
    ("Training cost:", "time of the last epoch", "s", "without validation"),
)
_SPEED = re.compile(r"Overall training speed: .{1,60} \((\d{1,9}(?:\.\d{1,9})?) s / it\)")
_EPOCH_END = re.compile(r"END epoch:(\d{1,9})\s{1,9}train\s.{0,200}?elapse_avg:")
_SAME = 0.05
_FEW = 3
_SEARCHED = 40
"""A line that shows the tool comes early."""
NO_RANKS = "the log does not say how many ranks it has, nor if its samples are those of all ranks"
NO_MEAN = "the log does not say if its times are of one step or a mean"
REPEATED = "a line that repeats the step of the one before, as of another rank; excluded"


class Dialect(NamedTuple):
    """A tool whose lines have the sign, and what is known of them."""

    sign: str
    name: str
    title: str
    framework: str
    others: dict[str, Any]
    """Further fields of its grammar."""


def read_training(text: str) -> Figures | None:
    """Return the figures of a line that says how long a step of the training took, else null."""
    text = _NULLS.sub("", text)
    if not RECORD.search(text) or (_BAR.search(text) and not _OF_TRAINING.search(text)):
        return None
    if _RICH_BAR.search(text) and not _EPOCH_BAR.search(text):
        return None
    if NO_TRAINING.search(text) and "train" not in text.lower():
        return None
    figures = read_figures(text)
    if figures.step is not None and figures.tells_time:
        return figures
    return None


def read(line: Line, found: Found, dialects: Sequence[Dialect]) -> None:
    """Take a line; the first of the dialects whose sign an early record shows is that of all."""
    text, memory = line.text, found.memory
    figures, dialect = read_training(text), memory.get("dialect")
    if figures is None or (dialect and not re.search(dialect.sign, text)):
        _read_other(line, found)
        return
    last = found.records[-1] if found.records else None
    if figures.epoch is None:
        figures = figures._replace(epoch=memory.get("epoch"))
    if figures.total_s and figures.total_s == memory.get("total_s") and not figures.step_s:
        return  # the clock shows no time: the next line is about these steps as well
    if last is not None and (last.epoch, last.step) == (figures.epoch, figures.step):
        found.warn(REPEATED, line.number)
        return
    if dialect is None and len(found.records) < _SEARCHED:
        signs = filter(lambda each: re.search(each.sign, text), dialects)
        memory["dialect"] = next(signs, None)
    memory["steps"] = figures.steps
    if "videos" in memory:
        found.add_facts(global_batch_size=find_batch(memory["videos"], figures.steps))
    if figures.rate:
        memory.setdefault("counted", Counter())[figures.counted, figures.of_card] += 1
    step_s, samples = _step_time(figures, last, memory), figures.samples
    if samples is None and figures.counted in VARYING and figures.rate and step_s:
        samples = figures.rate * step_s
    found.add_record(
        line,
        figures.step,
        figures.epoch,
        time_s=find_time(text),
        step_s=step_s,
        data_s=figures.data_s,
        throughput=figures.rate,
        samples=samples,
        loss=figures.loss,
        lr=figures.lr,
    )


def _read_other(line: Line, found: Found) -> None:
    """Take an epoch's heading, a batch size, or a result."""
    for label, what, unit, how in _RESULTS:
        read_result(line, found, label, what, unit, how)
    if end := _EPOCH_END.search(line.text):
        found.evaluation_lines.append(line.number)
        _read_epoch_end(line, as_count(end[1]) or 0, found)
    elif speed := _SPEED.search(line.text):
        how = "mean over the run, without hooks"
        found.add_result(line.number, "step time", float(speed[1]), "s", how)
    elif NO_TRAINING.search(line.text):
        found.evaluation_lines.append(line.number)
    elif videos := _VIDEOS.match(line.text):
        found.memory.setdefault("videos", as_count(videos[1]))
    elif heading := _HEADING.match(line.text):
        found.memory["epoch"] = as_count(heading[1])
    elif match := _BATCH.search(line.text):
        is_total = bool(_TOTAL_BATCH.search(line.text))
        found.memory.setdefault("batch", (as_count(match[1]) or None, is_total, line.number))


def _read_epoch_end(line: Line, epoch: int, found: Found) -> None:
    """Take the means over all steps of an epoch."""
    step_s, data_s = number_after(line.text, "elapse_avg:"), number_after(line.text, "reader_avg:")
    throughput = number_after(line.text, "ips:")
    found.epochs.append(EpochMean(line.number, epoch, step_s, data_s, throughput))
    means = list(filter(None, map(attrgetter("throughput"), found.epochs)))
    if means:
        how = f"of one card; mean of {len(means)} epochs' means that the log states, start-up too"
        found.add_result(line.number, "throughput", statistics.fmean(means), "samples/s", how)


def find_batch(videos: int | None, iterations: int | None) -> int | None:
    """Return the one batch size that makes these iterations of these videos, or null."""
    if not videos or not iterations or iterations > videos:
        return None
    near = videos // iterations
    sizes = []
    for size in range(max(1, near - 1), near + 3):
        if iterations in {videos // size, -(-videos // size)}:
            sizes.append(size)
    if len(sizes) == 1:
        return sizes[0]
    return None


def _step_time(figures: Figures, last: Record | None, memory: dict[str, Any]) -> float | None:
    """Return the time of a step, from the first of the figures that tells it."""
    passed = figures.step or 0
    if last is not None and last.epoch == figures.epoch:
        passed -= last.step
    before, memory["total_s"] = memory.get("total_s"), figures.total_s
    if figures.step_s:
        return figures.step_s
    if figures.window_s and passed > 0:
        memory["is_mean"] = True
        return figures.window_s / passed
    if figures.steps_per_s:
        return 1 / figures.steps_per_s
    if figures.total_s and before is not None and figures.total_s > before and passed > 0:
        memory["is_mean"] = True
        return float(figures.total_s - before) / passed
    return None


def settle(found: Found, grammar: Grammar) -> Grammar:
    """Return the grammar as its lines show it, when all of them are read."""
    memory, records = found.memory, found.records
    if not records:
        return grammar
    restarts = False
    for before, after in itertools.pairwise(records):
        restarts |= after.step < before.step and (after.epoch or 0) > (before.epoch or 0)
    by_clock = any(map(attrgetter("time_s"), records)) and "batch" not in memory
    by_clock &= not any(map(attrgetter("step_s"), records))
    counts = memory.get("counted") or Counter({("samples", False): 1})
    (counted, of_card), _ = counts.most_common(1)[0]
    fields: dict[str, Any] = {
        "unit": counted,
        "restarts_each_epoch": restarts,
        "first_step": int(min(map(attrgetter("step"), records)) > 0),
        "timed_by_clock": by_clock,
    }
    dialect: Dialect | None = memory.get("dialect")
    if dialect:
        fields.update(name=dialect.name, title=dialect.title, framework=dialect.framework)
        fields.update(dialect.others)
    if of_card:
        fields["scope"] = Scope.CARD
    if memory.get("is_mean") or by_clock or _divide_windows(found):
        fields["times"] = Mean.WINDOW
    if "scope" not in fields:
        found.warn(NO_RANKS, records[0].line)
    if "times" not in fields:
        found.warn(NO_MEAN, records[0].line)
    if memory["steps"] and not restarts:
        _add_fact(found, "last_step", memory["steps"], records[-1].line)
    if (
        counted not in VARYING
        and "batch" in memory
        and not any(map(attrgetter("samples"), records))
    ):
        size, is_total, number = memory["batch"]
        is_total = is_total or fields.get("scope") is not Scope.CARD
        _add_fact(found, "global_batch_size" if is_total else "batch_size", size, number)
    return dataclasses.replace(grammar, **fields)


def _add_fact(found: Found, fact: str, value: int, line: int) -> None:
    """Add a fact of the job that is known at the end only."""
    found.fact_blocks.insert(0, FactBlock(0, {fact: value}))
    found.fact_lines.setdefault((fact, value), line)


def _divide_windows(found: Found) -> bool:
    """Divide times that are as long as what passed between the lines by their steps."""
    records, shares = found.records, []
    for before, after in itertools.pairwise(records):
        steps = after.step - before.step
        passed_s = (after.time_s or 0.0) - (before.time_s or after.time_s or 0.0)
        if passed_s > 0 and after.step_s and steps >= _FEW:
            shares.append((after.step_s / passed_s, steps))
    if len(shares) < _FEW:
        return False
    parts, counts = zip(*shares, strict=True)
    if abs(statistics.median(parts) - 1) > _SAME:
        return False
    usual = statistics.mode(counts)
    for place, record in enumerate(records):
        if record.step_s is not None:
            samples = record.samples and record.samples / usual
            step_s = record.step_s / usual
            found.records[place] = dataclasses.replace(record, step_s=step_s, samples=samples)
    found.warn("times that are those of all steps since the line before", records[0].line)
    return True
