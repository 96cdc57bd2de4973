"""Training logs of PaddleClas, PaddleSeg, PaddleVideo, PaddleNLP, OpenMMLab, detectron2, NVIDIA's examples and others.

A log knows no phases, and no rank but the one that prints. A run made of one has the steps' wall
time and, where the log states the wait for data, a span of phase `data` at each step's beginning.

Many lines are about a window of N steps and state their mean. Such a window becomes N steps of that
mean, with the samples of one each: sums, rates and step times are then those of the log. The steps
of a window are equal by construction, and intervals stay honest because they are made for
correlated steps: equal neighbours count as one. `config` says how many steps a line is about
(`steps_per_line`) and what its times are means of (`step_times`). Such steps have no epoch, because
a mean cannot be taken apart where one begins; the loss, which is of the printed step, stands at the
window's last one. Lines that are about one step in twenty leave the other nineteen out.

Where a tool counts the samples of all cards, each step has rank 0's share of them, and `config`
says for how many ranks it speaks, so that a report shows what the log shows.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.clock import Anchor
from profkit.errors import UnreadableError
from profkit.importers._base import Imported, Target, clean_name
from profkit.importers._blocks import TornError, read_blocks
from profkit.importers._columns import constant, numbers
from profkit.importers._logs._assemble import GRAMMARS, MARKS_ALONE, find_grammar, load_grammars, parse_log
from profkit.importers._logs._parsed import Mean, ParsedLog, Record, Scope, Stated
from profkit.importers._logs._text import read_lines
from profkit.importers._logs._times import has_year
from profkit.text import safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import Phase, RunState

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SEARCHED_BYTES = 32 << 20
"""How far into a file records are looked for: configurations and warnings of 200 kB come first in some."""
MOST_ROWS = 5_000_000
WEEK_S = 7 * 86_400.0
LONGEST_RUN_NS = 100 * 366 * 86_400 * 10**9
_CLOCK_STEP_NS = 2_500_000_000
"""Timestamps in whole seconds, printed late: only a larger gap between two lines is one."""

_NOT_LOGS = (b'{"', b'[{"', b"{\n", b"[\n", b"SQLite format 3\0", b"\x80\x04", b"\x80\x02")


class TrainingLog:
    """Each file is a log, with a run for each that it holds."""

    name = "training_log"
    title = "training logs: PaddleClas, PaddleSeg, PaddleVideo, PaddleNLP, OpenMMLab, detectron2, NVIDIA DLLogger, AI-Rank, and others"

    def recognises(self, head: bytes, path: Path) -> float:
        if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_NOT_LOGS) or head.count(0) > len(head) / 8 or not head:
            return 0.0
        grammars = load_grammars()
        found = find_grammar(read_lines([head]), grammars)
        if found is None or found.name == MARKS_ALONE:
            found = find_grammar(read_lines(_beginning(path)), grammars) or found
        if found is None:
            return 0.0
        return 0.4 if found.name == MARKS_ALONE else 0.8

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            torn: list[str] = []
            logs = parse_log(functools.partial(_whole, path, torn), path.name, samples_per_step=target.options.samples_per_step)
            if not logs:
                raise UnreadableError(f"{safe_text(str(path))}: no line of it is of a training log that profkit knows (it knows {', '.join(GRAMMARS.names())})")
            for place, log in enumerate(logs, 1):
                yield _write(log, path, f"{path.stem}-run{place}" if len(logs) > 1 else "", target, torn[-1:])


def _beginning(path: Path) -> Iterator[bytes]:
    """The file's first part; nothing where it cannot be read."""
    left = SEARCHED_BYTES
    try:
        for block in read_blocks(path):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return
    except UnreadableError:
        return


def _whole(path: Path, torn: list[str]) -> Iterator[bytes]:
    """All of the file, or what of a damaged one can be had; `torn` is told why there is no more."""
    try:
        yield from read_blocks(path)
    except TornError as error:
        torn.append(str(error))


def _write(log: ParsedLog, path: Path, name: str, target: Target, torn: Iterable[str]) -> Imported:
    with target.new_run(TrainingLog.name, [path], name) as draft:
        placed = place_steps(log)
        tables = draft.rank(
            RankManifest(0, "", 0, clean_name(log.metadata.device or ""), placed.anchor, world_size=_world(log), framework=log.metadata.framework)
        )
        if len(placed.step):
            tables.write("steps", placed.step_columns())
        if placed.has_data.any():
            tables.write("spans", placed.span_columns())
        draft.dropped.update(placed.dropped)
        draft.flags.extend([*map(str, log.flags), *torn])
        return draft.finish(describe(log, placed))


def _world(log: ParsedLog) -> int:
    return log.metadata.world_size or 1


@dataclass(frozen=True)
class Placed:
    """Steps on a clock that begins with the first of them; `data_ns` counts where `has_data`."""

    step: Ints
    start_ns: Ints
    end_ns: Ints
    samples: Ints
    data_ns: Ints
    has_data: npt.NDArray[np.bool_]
    loss: Floats
    epoch: Ints
    warm_up: int
    anchor: Anchor
    dropped: Counter[str]

    def step_columns(self) -> dict[str, Any]:
        count = len(self.step)
        return {
            "step": self.step,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "sample_count": self.samples,
            "loss": numbers(self.loss, np.isfinite(self.loss)),
            "instrumented": np.ones(count, dtype=bool).tolist(),
            "epoch": numbers(self.epoch.astype(np.int32), self.epoch >= 0),
        }

    def span_columns(self) -> dict[str, Any]:
        known = self.has_data
        count = int(known.sum())
        name = constant(Phase.DATA.value, count)
        start = self.start_ns[known]
        return {
            "step": self.step[known],
            "phase": name,
            "name": name,
            "depth": np.zeros(count, dtype=np.int16),
            "thread": constant("main", count),
            "start_ns": start,
            "end_ns": start + self.data_ns[known],
        }


def place_steps(log: ParsedLog) -> Placed:
    """The log's records as steps one after the other, with a gap where the timestamps show one."""
    dropped: Counter[str] = Counter()
    records = [each for each in log.records if _can_be(each, dropped)]
    counts = np.array([each.steps for each in records], dtype=np.int64)
    if counts.sum() > MOST_ROWS:
        dropped["steps of windows, over the limit: one stands for each line"] += int(counts.sum()) - len(records)
        counts = np.ones(len(records), dtype=np.int64)
    begin = _begin_times(records, counts, dropped)
    kept = len(begin)
    records, counts = records[:kept], counts[:kept]
    within = _within(counts)
    step_ns = np.repeat(np.array([(each.step_s or 0) * 1e9 for each in records], dtype=np.float64), counts)
    start = np.repeat(np.array(begin, dtype=np.int64), counts)
    last = np.cumsum(counts) - 1
    loss = np.full(len(within), np.nan)
    loss[last] = [np.nan if each.loss is None else each.loss for each in records]
    data = np.array([np.nan if each.data_s is None or not 0 <= each.data_s < WEEK_S else each.data_s * 1e9 for each in records], dtype=np.float64)
    data_ns = np.repeat(data, counts)
    step = np.repeat(_first_steps(records, counts), counts) + within
    return Placed(
        step=step,
        start_ns=start + (within * step_ns).astype(np.int64),
        end_ns=start + ((within + 1) * step_ns).astype(np.int64),
        samples=np.repeat(_samples(log, records), counts),
        data_ns=np.nan_to_num(data_ns).astype(np.int64),
        has_data=np.isfinite(data_ns),
        loss=loss,
        epoch=np.repeat(np.array([_epoch(log, each) for each in records], dtype=np.int64), counts),
        warm_up=_warm_up(log, records, step),
        anchor=_anchor(records, begin, counts),
        dropped=dropped,
    )


def _can_be(record: Record, dropped: Counter[str]) -> bool:
    if record.step_s is None:
        dropped["lines that do not tell how long a step took"] += 1
        return False
    if not 0 < record.step_s < WEEK_S:
        dropped["lines with a step time that cannot be"] += 1
        return False
    return True


def _begin_times(records: Sequence[Record], counts: Ints, dropped: Counter[str]) -> list[int]:
    """When each record's steps began: where the ones before ended, or later where its timestamp says so."""
    begins: list[int] = []
    base = next((each.time_s for each in records if each.time_s is not None), 0.0)
    end, shift = 0, 0
    for record, count in zip(records, counts.tolist(), strict=True):
        length = round((record.step_s or 0) * 1e9 * count)
        if not begins:
            shift = length
        told = round((record.time_s - base) * 1e9) + shift if record.time_s is not None and abs(record.time_s - base) < WEEK_S * 1000 else None
        gap = told - length - end if told is not None and begins else 0
        begin = end + gap if _CLOCK_STEP_NS < gap < WEEK_S * 1e9 else end
        if begin + length > LONGEST_RUN_NS:
            dropped["lines more than a hundred years after the first"] += len(records) - len(begins)
            break
        begins.append(begin)
        end = begin + length
    return begins


def _within(counts: Ints) -> Ints:
    """For each row, its place in its window."""
    first = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first, counts)


def _first_steps(records: Sequence[Record], counts: Ints) -> Ints:
    """The number of each window's first step; windows never overlap."""
    firsts = []
    next_free = 0
    for record, count in zip(records, counts.tolist(), strict=True):
        first = max(record.index - count + 1, next_free)
        firsts.append(first)
        next_free = first + count
    return np.array(firsts, dtype=np.int64)


def _samples(log: ParsedLog, records: Sequence[Record]) -> Ints:
    """The samples that rank 0 trained on in a step; where they are words, the mean, because no batch of them is partial."""
    cards = _world(log) if log.scope is Scope.ALL else 1
    given = [each.samples / cards if each.samples else 0.0 for each in records]
    known = [each for each in given if each]
    if not known:
        return np.zeros(len(records), dtype=np.int64)
    if log.unit == "words":
        weights = [each.steps for each in log.steady if each.samples]
        steady = [(each.samples or 0) / cards for each in log.steady if each.samples]
        usual = sum(size * weight for size, weight in zip(steady, weights, strict=True)) / sum(weights)
        return np.full(len(records), round(usual), dtype=np.int64)
    usual = round(statistics.median(known))
    return np.array([usual if not each or abs(each - usual) <= 0.02 * usual else round(each) for each in given], dtype=np.int64)


def _epoch(log: ParsedLog, record: Record) -> int:
    return record.epoch if log.times is Mean.STEP and record.epoch is not None else -1


def _warm_up(log: ParsedLog, records: Sequence[Record], step: Ints) -> int:
    """The steps up to the last record of the warm-up."""
    early = {id(each) for each in log.records[: log.warm_up]}
    last = max((each.index for each in records if id(each) in early), default=None)
    return max(0, last - int(step[0]) + 1) if last is not None and len(step) else 0


def _anchor(records: Sequence[Record], begin: Sequence[int], counts: Ints) -> Anchor:
    """The run's clock tied to the first timestamp that has a year; where none has, nothing is known of the time of day."""
    for record, start, count in zip(records, begin, counts.tolist(), strict=True):
        if record.time_s is not None and has_year(record.time_s):
            return Anchor(start + round((record.step_s or 0) * 1e9 * count), round(record.time_s * 1e9), 1_000_000_000)
    return Anchor(0, 0, 0)


def describe(log: ParsedLog, placed: Placed) -> RunManifest:
    """`run.json`: what the log says of the job, and how its lines are to be read."""
    anchor = placed.anchor
    created = anchor.realtime_ns - anchor.monotonic_ns if anchor.realtime_ns else 0
    return RunManifest(
        workload=clean_name(log.metadata.model or log.title),
        framework=log.metadata.framework,
        state=RunState.ABORTED if log.aborted else RunState.RUNNING,
        why=log.aborted,
        world_size=_world(log),
        created_ns=created,
        ended_ns=created + int(placed.end_ns[-1]) if created and len(placed.end_ns) else None,
        config={key: value for key, value in _config(log, placed).items() if value is not None},
        environment={"versions": {clean_name(name): clean_name(value) for name, value in log.metadata.versions.items()}},
    )


def _config(log: ParsedLog, placed: Placed) -> dict[str, Any]:
    metadata = log.metadata
    windows = [each.steps for each in log.records]
    return {
        "log_grammar": log.grammar,
        "log_of": log.title,
        "precision": metadata.precision,
        "batch_size": metadata.batch_size,
        "global_batch_size": metadata.global_batch_size,
        "device": clean_name(metadata.device) if metadata.device else None,
        "sample_unit": log.unit,
        "samples_counted_of": log.scope.value,
        "step_times": log.times.value,
        "steps_per_line": statistics.mode(windows) if windows else None,
        "rows_speak_for_ranks": _world(log) if log.scope is Scope.ALL else None,
        "warmup": placed.warm_up,
        "told_by_file_name": list(metadata.from_name) or None,
        "stated": [_stated(each) for each in log.stated[-20:]] or None,
    }


def _stated(each: Stated) -> dict[str, Any]:
    return {"what": each.what, "value": each.value, "unit": each.unit, "how": each.how, "line": each.line}


IMPORTER = TrainingLog()
