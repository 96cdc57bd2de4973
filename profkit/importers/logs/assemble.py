"""Reads a log into its runs: finds the grammar, reads the lines, and checks the figures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from profkit.importers.logs.facts import read_facts, read_name
from profkit.importers.logs.formats.airank import read_marks
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.integrity import check, flag_unlike_runs
from profkit.importers.logs.integrity.evidence import Evidence
from profkit.importers.logs.knobs import read_knobs
from profkit.importers.logs.marks import WINDOWS, read_event
from profkit.importers.logs.metadata import (
    add_name_hints,
    batch_size,
    learn_batch,
    metadata_from_log,
    settle_accumulation,
)
from profkit.importers.logs.parsed import (
    MAD_TO_DEVIATION,
    Flag,
    Mean,
    ParsedLog,
    Record,
    flag_lines,
)
from profkit.importers.logs.samples import fill_samples
from profkit.importers.logs.steps import (
    MAX_STEPS,
    clear_impossible,
    count_steps,
    count_warm_up,
    drop_strays,
    neighbours,
    split_runs,
    unwrap_years,
)
from profkit.importers.logs.text import Damage, Line, read_lines
from profkit.importers.logs.times import find_time
from profkit.plugins import Seam

GRAMMARS = Seam("log grammar", "profkit.importers.logs.formats", "GRAMMAR", "profkit.log_grammars")
MARKS_ALONE = "airank"
"""The grammar of files that hold nothing but the marks which are read in every log."""
ENOUGH_LINES = 40
"""After this many record lines the grammar is certain."""

Blocks = Callable[[], Iterable[bytes]]

_SIGNAL = re.compile(r"Terminating with signal (\d{1,3})")
_NAN_LOSS = re.compile(r"(?<![\w.])(?:total_|train\.)?loss ?:\s{0,4}nan", re.IGNORECASE)
_WARNINGS = {
    "Found inf or nan": "an update skipped, because gradients were not finite",
    "fail to perform transform": "a sample that could not be loaded",
    "CUDA out of memory": "out of memory",
    "out of memory error": "out of memory",
}


@functools.cache
def load_grammars() -> Mapping[str, Grammar]:
    """Return every grammar by name, without those that fail to load."""
    return GRAMMARS.load_all()[0]


def find_grammar(lines: Iterable[Line], grammars: Mapping[str, Grammar]) -> Grammar | None:
    """Return the grammar with the most record lines.

    One for any tool counts if no other has any lines, and marks alone if it has none either.
    """
    hits: Counter[str] = Counter()
    ranks = dict(zip(grammars, map(_rank, grammars.values()), strict=True))
    certain = 0
    for line in lines:
        for name, grammar in grammars.items():
            is_certain = ranks[name] < _OF_A_TOOL and hits[name] >= ENOUGH_LINES
            if not is_certain and grammar.matches(line.text):
                hits[name] += 1
                certain += ranks[name] == _OF_A_TOOL
        if certain >= ENOUGH_LINES:
            break
    if not hits:
        return None
    return grammars[max(hits, key=lambda name: (ranks[name], hits[name], name))]


_OF_A_TOOL = 2


def _rank(grammar: Grammar) -> int:
    """Return how certain a grammar makes it what the file is."""
    if grammar.name == MARKS_ALONE:
        return 0
    return 1 if grammar.settle else _OF_A_TOOL


def parse_log(
    blocks: Blocks,
    name: str = "",
    grammars: Mapping[str, Grammar] | None = None,
    samples_per_step: int | None = None,
    cards: int | None = None,
) -> list[ParsedLog]:
    """Return the runs in a log, in the order of the file; none if no grammar matches.

    `blocks` is called twice for the log's bytes: to find the grammar and to read. The user may give
    `samples_per_step`, the samples of one card in a step. `cards` is what a description of the
    system says that the log does not.
    """
    grammar = find_grammar(read_lines(blocks()), grammars or load_grammars())
    if grammar is None:
        return []
    damage = Damage()
    reader = LogReader(grammar, name, samples_per_step)
    reader.read_cards(cards)
    for line in read_lines(blocks(), damage):
        reader.read(line)
    return reader.finish(damage)


@dataclasses.dataclass(frozen=True)
class RunPart:
    """One run of a file: its records, and the lines up to the next run's first record."""

    records: Sequence[Record]
    place: int
    count: int
    start: int
    end: float

    def holds(self, line: int) -> bool:
        """Return whether the line belongs to this run."""
        return self.count == 1 or self.start < line < self.end

    @property
    def flags(self) -> list[Flag]:
        if self.count == 1:
            return []
        number = self.place + 1
        ordinal = {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
        lines = (self.records[0].line, self.records[-1].line)
        return [Flag(f"the file holds {self.count} runs; this is the {ordinal}", lines)]


class LogReader:
    """Reads a log's lines with one grammar, and with the rules that hold for all logs."""

    def __init__(self, grammar: Grammar, name: str, samples_per_step: int | None) -> None:
        self._found = Found()
        self._samples_per_step = samples_per_step
        self._grammar = grammar
        self._hints = read_name(name)
        self._header: tuple[int, float] | None = None
        """The line and time of the first timestamp outside of records."""
        self._process: int | None = None
        self._aborted = ""

    def read_cards(self, cards: int | None) -> None:
        """Take the number of cards, which counts for every run of the file."""
        self._found.add_facts(world_size=cards)

    def read(self, line: Line) -> None:
        """Read the next line; records count only from the first process that prints any."""
        found, before = self._found, len(self._found.records)
        found.line_number = line.number
        self._grammar.read(line, found)
        if len(found.records) > before:
            if self._process is None:
                self._process = line.process
            if line.process != self._process:
                found.records.pop()
                found.warn("a record of another process; excluded", line.number)
            elif _NAN_LOSS.search(line.text):
                found.warn("a loss that is not a number", line.number)
            return
        if self._header is None and (time_s := find_time(line.text)) is not None:
            self._header = (line.number, time_s)
        read_marks(line, found)
        self._read_event(line)
        read_facts(line, found)
        last = found.records[-1].line if found.records else 0
        if not last or (found.header_lines and found.header_lines[-1] > last):
            read_knobs(line, found)
        for words, meaning in _WARNINGS.items():
            if words in line.text:
                found.warn(meaning, line.number)
        if signal := _SIGNAL.search(line.text):
            self._aborted = f"the log says: terminating with signal {signal[1]}"

    def _read_event(self, line: Line) -> None:
        """Take a mark of MLPerf, unless the grammar does that."""
        if self._grammar.name != WINDOWS:
            read_event(line, self._found)

    def finish(self, damage: Damage) -> list[ParsedLog]:
        """Return the runs, each with its flags."""
        if self._grammar.settle:
            self._grammar = self._grammar.settle(self._found, self._grammar)
        possible, impossible = clear_impossible(self._found.records)
        records, strays = drop_strays(possible, self._grammar)
        flags = [*strays, *impossible, *damage.flags, *self._found.flags]
        runs = split_runs(unwrap_years(records), self._grammar, self._found.header_lines)
        if not runs:
            return [self._finish_run(RunPart([], 0, 1, 0, math.inf), flags)]
        ends = [*(run[0].line for run in runs[1:]), math.inf]
        logs = []
        for place, run in enumerate(runs):
            part = RunPart(run, place, len(runs), run[0].line, ends[place])
            logs.append(self._finish_run(part, flags))
        return flag_unlike_runs(logs)

    def _finish_run(self, part: RunPart, flags: Sequence[Flag]) -> ParsedLog:
        """Return one run, with its figures completed and checked."""
        grammar, found, hints = self._grammar, self._found, self._hints
        facts = metadata_from_log(found, part.start, part.end, self._samples_per_step)
        metadata = add_name_hints(facts, hints, grammar, part.records)
        last_of_kind = {each.what: each for each in found.stated if part.holds(each.line)}
        stated = tuple(last_of_kind.values())
        metadata, doubts = settle_accumulation(metadata, part.records, stated)
        undone, falling = undo_cumulative(count_steps(part.records, grammar), grammar)
        batch = batch_size(metadata, grammar.scope)
        is_estimated = batch is None and not any(each.samples or each.step_s for each in undone)
        filled, partial = fill_samples(undone, batch, timed_by_clock=grammar.timed_by_clock)
        if not grammar.evaluates_apart:
            filled = part_evaluations(filled, found.evaluation_lines, grammar.times)
        log = ParsedLog(
            grammar=grammar.name,
            title=grammar.title,
            scope=grammar.scope,
            unit=grammar.unit,
            times=grammar.times,
            records=tuple(filled),
            metadata=metadata if is_estimated else learn_batch(metadata, filled, grammar),
            epochs=tuple(each for each in found.epochs if part.holds(each.line)),
            stated=stated,
            flags=(*part.flags, *flags, *falling, *partial, *doubts),
            warm_up=count_warm_up(filled, grammar),
            aborted="" if part.place < part.count - 1 else self._aborted,
            fact_lines=found.lines_between(part.start, part.end),
        )
        if not grammar.batch_in_name:
            hints = dataclasses.replace(hints, batch_size=None)
        evidence = Evidence(
            hints=hints,
            facts=facts,
            evaluation_lines=found.evaluation_lines,
            header=None if part.place else self._header,
            timed_by_clock=grammar.timed_by_clock,
        )
        return dataclasses.replace(log, flags=(*log.flags, *check(log, evidence)))


# Takes evaluations and checkpoints out of the figures of the lines that include them.
#
# Some tools measure a window from line to line, so that an evaluation or a checkpoint between two
# lines is in the time of the later one, and often in its wait for data.
_LONGER_STEP = 1.2
"""An evaluation that is included makes a step longer than this many usual ones."""
_LEAST_LONGER, _SPREADS = 1.05, 5.0
"""In an even log this many usual ones are enough, if they are as many robust deviations away."""
_LONGER_WAIT = 2.0
"""An evaluation that is included makes a wait for data longer than this many usual ones."""
_NOTICEABLE_WAIT = 0.1
"""A wait for data counts as longer only by this share of a step."""
_MORE_OFTEN = 3.0
"""Windows after an evaluation must be long this much more often than others.

Otherwise they are long for another reason, such as the start of an epoch.
"""


def part_evaluations(
    records: Sequence[Record], evaluation_lines: Sequence[int], times: Mean
) -> list[Record]:
    """Return the records with the time of an evaluation as `other_s` and not as `data_s`.

    It is what their wait and the rest of their step take longer than usual, because no log states
    the time of the evaluation itself.
    """
    waits = [each.data_s for each in records if each.data_s is not None]
    steps = [each.step_s for each in records if each.step_s is not None]
    if times.is_single or not evaluation_lines or not steps:
        return list(records)
    usual_wait_s, usual_step_s = statistics.median(waits or [0.0]), statistics.median(steps)
    # One limit for all logs would find the same checkpoint in one of two runs and not in the other.
    spread_s = MAD_TO_DEVIATION * statistics.median(abs(each - usual_step_s) for each in steps)
    longest_s = max(_LEAST_LONGER * usual_step_s, usual_step_s + _SPREADS * spread_s)
    longest_s = min(_LONGER_STEP * usual_step_s, longest_s)
    lines = sorted(evaluation_lines)
    follows, longer = {records[0].line: False}, {}
    for before, record in itertools.pairwise(records):
        place = bisect_right(lines, before.line)
        follows[record.line] = place < len(lines) and lines[place] < record.line
    for record in records:
        wait_s, step_s = record.data_s or 0.0, record.step_s or 0.0
        is_wait = wait_s - usual_wait_s > _NOTICEABLE_WAIT * usual_step_s
        is_wait = is_wait and wait_s > _LONGER_WAIT * usual_wait_s
        longer[record.line] = is_wait or step_s > longest_s
    after: list[bool] = []
    others: list[bool] = []
    for line, is_after in follows.items():
        (after if is_after else others).append(longer[line])
    others = others[1:]  # the first line follows no other
    if not any(after) or sum(after) * len(others) < _MORE_OFTEN * sum(others) * len(after):
        return list(records)
    parted = []
    for record in records:
        contains_one = follows[record.line] and longer[record.line] and record.step_s is not None
        parted.append(_part(record, usual_wait_s, usual_step_s) if contains_one else record)
    return parted


def _part(record: Record, usual_wait_s: float, usual_step_s: float) -> Record:
    """Return the record of a window that contains an evaluation."""
    wait_s, step_s = record.data_s, record.step_s or 0.0
    other_s = max(0.0, step_s - (wait_s or 0.0) - (usual_step_s - usual_wait_s))
    if wait_s is not None and wait_s > usual_wait_s:
        other_s += wait_s - usual_wait_s
        wait_s = usual_wait_s
    return dataclasses.replace(record, data_s=wait_s, other_s=other_s or None)


# Turns cumulative means into means over the steps since the line before.
MAX_ROUNDING_SHARE = 0.05
"""Rounding may make up this share of a mean that was undone."""
CUMULATIVE = (Mean.EPOCH, Mean.RUN)


def undo_cumulative(records: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[Flag]]:
    """Return the records with means over the steps since the line before.

    A mean over n steps is a sum divided by n. The difference of two sums, divided by the difference
    of their counts, is the mean of the steps between. Its rounding error grows with n, but the sum
    over all lines stays exact, because it is the last mean printed. So a line is dropped if its
    rounding error is too large or its steps would have taken no time. The next line is then about
    its steps as well.
    """
    if grammar.times not in CUMULATIVE:
        return list(records), []
    undone: list[Record] = []
    broken: list[int] = []
    for segment in _split_at_resets(records, grammar):
        kept, falling = _keep_precise(segment, grammar)
        broken += falling
        for before, record, _ in neighbours(kept):
            undone.append(_difference(record, before, grammar))
    return undone, flag_lines("a mean that falls faster than its steps could; excluded", broken)


def _split_at_resets(records: Sequence[Record], grammar: Grammar) -> Iterator[list[Record]]:
    """Yield the records between two resets of the means."""
    segment: list[Record] = []
    for record in records:
        count = grammar.steps_in_mean(record.step)
        if record.step_s is None or count <= 0:
            continue
        if segment:
            last = segment[-1]
            new_epoch = grammar.times is Mean.EPOCH and last.epoch != record.epoch
            if new_epoch or grammar.steps_in_mean(last.step) >= count:
                yield segment
                segment = []
        segment.append(record)
    if segment:
        yield segment


def _keep_precise(segment: Sequence[Record], grammar: Grammar) -> tuple[list[Record], list[int]]:
    """Return the records with precise differences, and the lines at which time runs backwards.

    The last record is kept in any case, because the sum over all records depends on it.
    """
    kept: list[Record] = []
    falling: list[int] = []
    for record in segment:
        window = _difference(record, kept[-1] if kept else None, grammar)
        step_s = window.step_s or 0
        error = grammar.rounding_s * (2 * grammar.steps_in_mean(record.step) / window.steps - 1)
        if step_s + error <= 0:
            falling.append(record.line)
        elif error <= MAX_ROUNDING_SHARE * step_s and (window.data_s or 0) >= 0:
            kept.append(record)
    last = segment[-1]
    if last.line not in falling and last not in kept:
        kept[-1:] = [last]
    return kept, falling


def _difference(record: Record, last: Record | None, grammar: Grammar) -> Record:
    """Return the record with its means over the steps since `last`."""
    count = grammar.steps_in_mean(record.step)
    before = 0
    last_step_s: float | None = 0.0
    last_data_s: float | None = 0.0
    if last:
        before = grammar.steps_in_mean(last.step)
        last_step_s, last_data_s = last.step_s, last.data_s
    data_s = record.data_s
    if (grammar.data_times or grammar.times) in CUMULATIVE:
        data_s = _mean_between(data_s, last_data_s, count, before)
    return dataclasses.replace(
        record,
        steps=min(count - before, MAX_STEPS),
        step_s=_mean_between(record.step_s, last_step_s, count, before),
        data_s=data_s,
    )


def _mean_between(value: float | None, last: float | None, count: int, before: int) -> float | None:
    if value is None or last is None:
        return None
    return (value * count - last * before) / (count - before)
