"""From a log's bytes to its runs: which grammar it is, what it says, and what of that must not be believed."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from profkit.importers.logs.facts import read_facts, read_name
from profkit.importers.logs.formats.airank import read_marks
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.integrity import Evidence, check, flag_unlike
from profkit.importers.logs.metadata import batch_size, complete, facts_of, learn_batch
from profkit.importers.logs.parsed import Flag, ParsedLog, Record
from profkit.importers.logs.steps import (
    clear_impossible,
    count_steps,
    drop_strays,
    fill_samples,
    split_runs,
    undo_cumulative,
)
from profkit.importers.logs.text import Damage, Line, read_lines
from profkit.importers.logs.times import YEAR_S, find_time, has_year
from profkit.plugins import Seam

GRAMMARS = Seam("log grammar", "profkit.importers.logs.formats", "GRAMMAR", "profkit.log_grammars")
MARKS_ALONE = "airank"
ENOUGH_LINES = 40
"""Record lines after which the grammar is certain."""

Blocks = Callable[[], Iterable[bytes]]

_SIGNAL = re.compile(r"Terminating with signal (\d{1,3})")
_NAN_LOSS = re.compile(r"(?<![\w.])(?:total_|train\.)?loss ?:\s{0,4}nan", re.IGNORECASE)
_EVENTS = {
    "Found inf or nan": "an update skipped, because gradients were not finite",
    "fail to perform transform": "a sample that could not be loaded",
    "CUDA out of memory": "out of memory",
    "out of memory error": "out of memory",
}


@functools.cache
def load_grammars() -> Mapping[str, Grammar]:
    """Every grammar there is, by name; one that fails to load is left out."""
    return GRAMMARS.load_all()[0]


def find_grammar(lines: Iterable[Line], grammars: Mapping[str, Grammar]) -> Grammar | None:
    """The grammar whose records the lines are; marks alone count where there is no other."""
    hits: Counter[str] = Counter()
    for line in lines:
        hits.update(name for name, grammar in grammars.items() if grammar.matches(line.text))
        if hits.total() - hits[MARKS_ALONE] >= ENOUGH_LINES:
            break
    best = max(hits, key=lambda name: (name != MARKS_ALONE, hits[name], name), default=None)
    return grammars[best] if best else None


def parse_log(
    blocks: Blocks,
    name: str = "",
    grammars: Mapping[str, Grammar] | None = None,
    samples_per_step: int | None = None,
) -> list[ParsedLog]:
    """The runs in a log, in the order of the file; none where no grammar knows it.

    `blocks` gives the bytes, twice: once to find the grammar, once to read. `samples_per_step` is
    what a card trains on, where the user says so.
    """
    grammar = find_grammar(read_lines(blocks()), grammars or load_grammars())
    if grammar is None:
        return []
    damage = Damage()
    reading = Reading(grammar, name, samples_per_step)
    for line in read_lines(blocks(), damage):
        reading.read(line)
    return reading.finish(damage)


class Reading:
    """Reads a log's lines with one grammar, and with what holds for all."""

    def __init__(
        self, grammar: Grammar, name: str = "", samples_per_step: int | None = None
    ) -> None:
        self.found = Found()
        self._told_samples = samples_per_step
        self._grammar = grammar
        self._hints = read_name(name)
        self._header: tuple[int, float] | None = None
        self._process: int | None = None
        self._aborted = ""

    def read(self, line: Line) -> None:
        found, before = self.found, len(self.found.records)
        found.at = line.number
        self._grammar.read(line, found)
        if len(found.records) > before:
            self._keep_one_process(line)
        else:
            self._read_other(line)

    def _keep_one_process(self, line: Line) -> None:
        """Where all processes print, the first that did is the one that counts."""
        if self._process is None:
            self._process = line.process
        if line.process != self._process:
            self.found.records.pop()
            self.found.notice("a record of another process, left out", line.number)
        elif _NAN_LOSS.search(line.text):
            self.found.notice("a loss that is not a number", line.number)

    def _read_other(self, line: Line) -> None:
        if self._header is None and (time_s := find_time(line.text)) is not None:
            self._header = (line.number, time_s)
        read_marks(line, self.found)
        read_facts(line, self.found)
        for words, meaning in _EVENTS.items():
            if words in line.text:
                self.found.notice(meaning, line.number)
        if signal := _SIGNAL.search(line.text):
            self._aborted = f"the log says: terminating with signal {signal[1]}"

    def finish(self, damage: Damage) -> list[ParsedLog]:
        """The runs, each with its flags."""
        possible, impossible = clear_impossible(self.found.records)
        records, flags = drop_strays(possible, self._grammar)
        flags += [*impossible, *_damage_flags(damage), *self.found.flags]
        runs = split_runs(_unwrap_years(records), self._grammar, self.found.headers) or [[]]
        starts = [run[0].line if run else 0 for run in runs]
        parts = [
            RunPart(run, place, len(runs), start, end)
            for place, (run, start, end) in enumerate(
                zip(runs, starts, [*starts[1:], math.inf], strict=True)
            )
        ]
        return flag_unlike([self._finish_run(part, flags) for part in parts])

    def _finish_run(self, part: RunPart, flags: Sequence[Flag]) -> ParsedLog:
        grammar, found = self._grammar, self.found
        facts = facts_of(found, part.start, part.end, self._told_samples)
        metadata = complete(facts, self._hints, grammar, part.records)
        undone, torn = undo_cumulative(count_steps(part.records, grammar), grammar)
        filled, partial = fill_samples(
            undone, batch_size(metadata, grammar.scope), timed=grammar.timed
        )
        log = ParsedLog(
            grammar=grammar.name,
            title=grammar.title,
            scope=grammar.scope,
            unit=grammar.unit,
            times=grammar.times,
            records=tuple(filled),
            metadata=learn_batch(metadata, filled, grammar),
            epochs=tuple(each for each in found.epochs if part.holds(each.line)),
            stated=tuple(
                {each.what: each for each in found.stated if part.holds(each.line)}.values()
            ),
            flags=(*part.flags, *flags, *torn, *partial),
            warm_up=_warm_up(filled, grammar),
            aborted="" if part.place < part.count - 1 else self._aborted,
        )
        hints = (
            self._hints
            if grammar.batch_in_name
            else dataclasses.replace(self._hints, batch_size=None)
        )
        evidence = Evidence(
            hints,
            facts,
            found.evaluations,
            None if part.place else self._header,
            timed=grammar.timed,
        )
        return dataclasses.replace(log, flags=(*log.flags, *check(log, evidence)))


@dataclasses.dataclass(frozen=True)
class RunPart:
    """One of the runs in a file: its records, and the lines from its first record to the next run's."""

    records: Sequence[Record]
    place: int
    count: int
    start: int
    end: float

    def holds(self, line: int) -> bool:
        """Whether the line is this run's; all are where there is but one."""
        return self.count == 1 or self.start < line < self.end

    @property
    def flags(self) -> list[Flag]:
        if self.count == 1:
            return []
        return [
            Flag(
                f"the file holds {self.count} runs; this is the {_ordinal(self.place + 1)}",
                (self.records[0].line, self.records[-1].line),
            )
        ]


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _damage_flags(damage: Damage) -> list[Flag]:
    flags = []
    if damage.undecodable_count:
        flags.append(
            Flag(
                f"{damage.undecodable_count:,} x a line with bytes that are no text",
                tuple(damage.undecodable),
            )
        )
    if damage.cut:
        flags.append(Flag(f"{damage.cut:,} x a line too long to be read to its end"))
    if damage.torn:
        flags.append(Flag("the last line has no end; a number there is not read"))
    return flags


def _unwrap_years(records: Sequence[Record]) -> list[Record]:
    """Timestamps without a year that begin anew in January belong to the next one."""
    added, last = 0.0, None
    unwrapped = []
    for record in records:
        time_s = record.time_s
        if (
            time_s is not None
            and not has_year(time_s)
            and last is not None
            and last - time_s > YEAR_S / 2
        ):
            added += YEAR_S
        last = time_s if time_s is not None else last
        unwrapped.append(
            dataclasses.replace(record, time_s=time_s + added)
            if time_s is not None and added
            else record
        )
    return unwrapped


def _warm_up(records: Sequence[Record], grammar: Grammar) -> int:
    """Leading records that are left out; one is kept in any case."""
    early = next(
        (place for place, each in enumerate(records) if each.step >= grammar.warm_up_steps),
        len(records),
    )
    return min(max(early, grammar.warm_up_records), max(0, len(records) - 1))


__all__ = ["GRAMMARS", "MARKS_ALONE", "Reading", "find_grammar", "load_grammars", "parse_log"]
