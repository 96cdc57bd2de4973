"""From a log's bytes to its runs: which grammar it is, what it says, and what of that must not be believed."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from profkit.importers._logs._facts import NameHints, read_facts, read_name
from profkit.importers._logs._grammar import Found, Grammar
from profkit.importers._logs._integrity import Evidence, check, flag_unlike
from profkit.importers._logs._parsed import Flag, Mean, Metadata, ParsedLog, Record, Scope
from profkit.importers._logs._steps import count_steps, drop_strays, fill_samples, split_runs, undo_cumulative
from profkit.importers._logs._text import Damage, Line, read_lines
from profkit.importers._logs._times import YEAR_S, find_time, has_year
from profkit.importers._logs.airank import read_marks
from profkit.plugins import Seam

GRAMMARS = Seam("log grammar", "profkit.importers._logs", "GRAMMAR", "profkit.log_grammars")
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


def parse_log(blocks: Blocks, name: str = "", grammars: Mapping[str, Grammar] | None = None, samples_per_step: int | None = None) -> list[ParsedLog]:
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

    def __init__(self, grammar: Grammar, name: str = "", samples_per_step: int | None = None) -> None:
        self.found = Found()
        self._told_samples = samples_per_step
        self._grammar = grammar
        self._hints = read_name(name)
        self._header: tuple[int, float] | None = None
        self._process: int | None = None
        self._aborted = ""

    def read(self, line: Line) -> None:
        found, before = self.found, len(self.found.records)
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
        records, flags = drop_strays(self.found.records, self._grammar)
        flags += [*_damage_flags(damage), *self.found.flags]
        runs = split_runs(_unwrap_years(records), self._grammar, self.found.headers) or [[]]
        return flag_unlike([self._finish_run(run, flags, place, len(runs)) for place, run in enumerate(runs)])

    def _finish_run(self, records: Sequence[Record], flags: Sequence[Flag], place: int, count: int) -> ParsedLog:
        grammar, facts = self._grammar, _facts(self.found.facts)
        if self._told_samples:
            facts = dataclasses.replace(facts, batch_size=self._told_samples, global_batch_size=None)
        metadata = _metadata(facts, self._hints, grammar)
        counted = count_steps(records, grammar)
        undone, torn = undo_cumulative(counted, grammar)
        filled, partial = fill_samples(undone, _batch(metadata, grammar.scope), timed=grammar.timed)
        first, last = (records[0].line, records[-1].line) if records else (0, 0)
        mine = place == count - 1
        several = [Flag(f"the file holds {count} runs; this is the {_ordinal(place + 1)}", (first, last))] if count > 1 else []
        log = ParsedLog(
            grammar=grammar.name,
            title=grammar.title,
            scope=grammar.scope,
            unit=grammar.unit,
            times=grammar.times,
            records=tuple(filled),
            metadata=_learn_batch(metadata, filled, grammar),
            epochs=tuple(self.found.epochs) if count == 1 else (),
            stated=tuple(each for each in self.found.stated if count == 1 or (first < each.line and (mine or each.line < self._next_run(records)))),
            flags=(*several, *flags, *torn, *partial),
            warm_up=_warm_up(filled, grammar),
            aborted=self._aborted if mine else "",
        )
        evidence = Evidence(self._hints, facts, self.found.evaluations, self._header if not place else None, timed=grammar.timed)
        return dataclasses.replace(log, flags=(*log.flags, *check(log, evidence)))

    def _next_run(self, records: Sequence[Record]) -> int:
        """The line of the first record behind these."""
        return min((each.line for each in self.found.records if each.line > records[-1].line), default=records[-1].line)


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def _damage_flags(damage: Damage) -> list[Flag]:
    flags = []
    if damage.undecodable_count:
        flags.append(Flag(f"{damage.undecodable_count:,} x a line with bytes that are no text", tuple(damage.undecodable)))
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
        if time_s is not None and not has_year(time_s) and last is not None and last - time_s > YEAR_S / 2:
            added += YEAR_S
        last = time_s if time_s is not None else last
        unwrapped.append(dataclasses.replace(record, time_s=time_s + added) if time_s is not None and added else record)
    return unwrapped


def _facts(told: Mapping[str, Any]) -> Metadata:
    """What the log itself says; cards of one node times the nodes where it tells these alone."""
    world = told.get("world_size")
    if world is None and told.get("cards_a_node"):
        world = told["cards_a_node"] * (told.get("nodes") or 1)
    fields: dict[str, Any] = {name: told.get(name) for name in ("batch_size", "global_batch_size", "precision", "model", "device", "last_step")}
    return Metadata(world_size=world, versions=told.get("versions", {}), **fields)


def _metadata(facts: Metadata, hints: NameHints, grammar: Grammar) -> Metadata:
    """What the log says, and the file's name where the log says nothing, or speaks of one node of several."""
    from_name: dict[str, Any] = {}
    several_nodes = facts.world_size and hints.world_size and hints.world_size > facts.world_size and hints.world_size % facts.world_size == 0
    if hints.world_size and (facts.world_size is None or several_nodes):
        from_name["world_size"] = hints.world_size
    if facts.precision is None and hints.precision:
        from_name["precision"] = hints.precision
    if facts.batch_size is None and facts.global_batch_size is None:
        if hints.global_batch_size:
            from_name["global_batch_size"] = hints.global_batch_size
        elif hints.batch_size and grammar.batch_in_name:
            from_name["batch_size"] = hints.batch_size
    return dataclasses.replace(facts, framework=grammar.framework, from_name=tuple(from_name), **from_name)


def _batch(metadata: Metadata, scope: Scope) -> float | None:
    """A step's samples, of one card or of all."""
    world = metadata.world_size or 1
    if scope is Scope.CARD:
        return metadata.batch_size or (metadata.global_batch_size / world if metadata.global_batch_size else None)
    return metadata.global_batch_size or (metadata.batch_size * world if metadata.batch_size else None)


def _warm_up(records: Sequence[Record], grammar: Grammar) -> int:
    """Leading records that are left out; one is kept in any case."""
    early = next((place for place, each in enumerate(records) if each.step >= grammar.warm_up_steps), len(records))
    return min(max(early, grammar.warm_up_records), max(0, len(records) - 1))


def _learn_batch(metadata: Metadata, records: Sequence[Record], grammar: Grammar) -> Metadata:
    """The batch sizes, from the records' samples where nothing else told them; not where samples are words."""
    samples = Counter(round(each.samples) for each in records if each.samples)
    if grammar.unit == "words" or not samples:
        return metadata
    usual, world = samples.most_common(1)[0][0], metadata.world_size or 1
    card, total = (usual, usual * world) if grammar.scope is Scope.CARD else (max(1, usual // world), usual)
    return dataclasses.replace(metadata, batch_size=metadata.batch_size or card, global_batch_size=metadata.global_batch_size or total)


__all__ = ["GRAMMARS", "Blocks", "Mean", "Reading", "find_grammar", "load_grammars", "parse_log"]
