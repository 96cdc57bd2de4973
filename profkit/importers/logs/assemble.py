"""Reads a log into its runs: finds the grammar, reads the lines, and checks the figures."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from profkit.importers.logs.cumulative import undo_cumulative
from profkit.importers.logs.evaluations import part_evaluations
from profkit.importers.logs.facts import read_facts, read_name
from profkit.importers.logs.formats.airank import read_marks
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.integrity import check, flag_unlike_runs
from profkit.importers.logs.integrity.evidence import Evidence
from profkit.importers.logs.knobs import read_knobs
from profkit.importers.logs.metadata import (
    add_name_hints,
    batch_size,
    learn_batch,
    metadata_from_log,
    settle_accumulation,
)
from profkit.importers.logs.parsed import Flag, ParsedLog, Record
from profkit.importers.logs.samples import fill_samples
from profkit.importers.logs.steps import (
    clear_impossible,
    count_steps,
    count_warm_up,
    drop_strays,
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
    """Return the grammar with the most record lines; marks alone count if no other has any."""
    hits: Counter[str] = Counter()
    for line in lines:
        for name, grammar in grammars.items():
            if grammar.matches(line.text):
                hits[name] += 1
        if hits.total() - hits[MARKS_ALONE] >= ENOUGH_LINES:
            break
    if not hits:
        return None
    best = max(hits, key=lambda name: (name != MARKS_ALONE, hits[name], name))
    return grammars[best]


def parse_log(
    blocks: Blocks,
    name: str = "",
    grammars: Mapping[str, Grammar] | None = None,
    samples_per_step: int | None = None,
) -> list[ParsedLog]:
    """Return the runs in a log, in the order of the file; none if no grammar matches.

    `blocks` is called twice for the log's bytes: to find the grammar and to read. The user may give
    `samples_per_step`, the samples of one card in a step.
    """
    grammar = find_grammar(read_lines(blocks()), grammars or load_grammars())
    if grammar is None:
        return []
    damage = Damage()
    reader = LogReader(grammar, name, samples_per_step)
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
        read_facts(line, found)
        last = found.records[-1].line if found.records else 0
        if not last or (found.header_lines and found.header_lines[-1] > last):
            read_knobs(line, found)
        for words, meaning in _WARNINGS.items():
            if words in line.text:
                found.warn(meaning, line.number)
        if signal := _SIGNAL.search(line.text):
            self._aborted = f"the log says: terminating with signal {signal[1]}"

    def finish(self, damage: Damage) -> list[ParsedLog]:
        """Return the runs, each with its flags."""
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
