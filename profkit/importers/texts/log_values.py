"""The values that a text can state, as a log has them, with their lines."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from profkit.analysis.matrix import FULL_PRECISIONS
from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.facts import read_name
from profkit.importers.logs.parsed import ParsedLog, Scope
from profkit.importers.reading.blocks import read_blocks
from profkit.importers.texts.values import CARDS_OF_NODE, FULL, MIXED, Of, Value, What
from profkit.text import safe_text

_PRECISION_FACTS = ("data_type", "precision", "autocast", "amp_level")
_RESULTS = {
    "target_quality_time": What.TIME,
    "total_use_time": What.TIME,
    "eval_accuracy": What.ACCURACY,
}
_ONE_CARD = "of one card"
"""The words of how a tool computed a result that is not of all cards."""


@dataclass(frozen=True)
class LogRun:
    """One run of a log, by the values that a text can state."""

    path: Path
    framework: str
    cards: int | None
    batch: int | None
    precision: str | None
    values: tuple[Value, ...]

    def of(self, what: What) -> list[Value]:
        return [each for each in self.values if each.what is what]


def precision_class(word: str | None) -> str | None:
    """Return what kind of arithmetic a precision is: all 16-bit ones are alike to a text."""
    if word is None:
        return None
    if word in FULL_PRECISIONS:
        return FULL
    return MIXED


def read_log_runs(path: Path) -> list[LogRun]:
    """Return the runs of a log; none if it is no log that profkit knows."""
    runs = []
    for log in parse_log(functools.partial(read_blocks, path), path.name):
        if log.records or log.stated:
            meta = log.metadata
            kind = precision_class(meta.precision)
            values = tuple(_values(log, safe_text(path.name)))
            run = LogRun(path, meta.framework, meta.world_size, meta.batch_size, kind, values)
            runs.append(run)
    return runs


def name_values(name: str) -> Iterator[Value]:
    """Yield what a file's name says of its run."""
    hints, file = read_name(name), safe_text(name)
    if hints.world_size:
        yield Value(What.CARDS, hints.world_size, file, 0, "")
    if hints.batch_size:
        yield Value(What.BATCH, hints.batch_size, file, 0, "")
    if hints.precision:
        yield Value(What.PRECISION, precision_class(hints.precision) or FULL, file, 0, "")


def _values(log: ParsedLog, file: str) -> Iterator[Value]:
    """Yield what the log itself says: facts, figures of its lines, and stated results."""
    yield from _facts(log, file)
    first = log.records[0].line if log.records else 0
    if log.mean_throughput and log.records:
        cards = log.metadata.world_size if log.scope is Scope.CARD else 1
        if cards:
            steady = log.steady
            words = f"mean of the steady steps, lines {steady[0].line} to {steady[-1].line}"
            mean = float(f"{log.mean_throughput * cards:.4g}")
            yield Value(What.THROUGHPUT, mean, file, steady[0].line, words, Of.ALL)
    for each in log.stated:
        words = f"{each.what}{f', {each.how}' if each.how else ''}"
        if each.what in _RESULTS:
            result = each.value
            if each.what == "eval_accuracy" and result > 1:  # some tools print it in percent
                result /= 100
            yield Value(_RESULTS[each.what], result, file, each.line, words)
        elif each.what.startswith(("throughput", "avg_ips")) and each.value > 0:
            value = each.value
            if _ONE_CARD in each.how and log.metadata.world_size:
                value = float(f"{value * log.metadata.world_size:.6g}")
                words += f", times {log.metadata.world_size} cards"
            yield Value(What.THROUGHPUT, value, file, each.line, words, Of.ALL)
    printed = [each for each in log.records if each.loss is not None]
    if first and printed:
        for words, choose in (("its highest loss", max), ("its lowest loss", min)):
            record = choose(printed, key=lambda each: each.loss or 0.0)
            yield Value(What.LOSS, record.loss or 0.0, file, record.line, words)


def _facts(log: ParsedLog, file: str) -> Iterator[Value]:
    meta, lines = log.metadata, log.fact_lines
    first = log.records[0].line if log.records else 0
    named = meta.from_name

    def line_of(*names: str) -> int:
        known = [lines[name] for name in names if name in lines]
        if known:
            return known[0]
        return first

    line = line_of("world_size", "cards_per_node")
    if meta.cards_of_one_node:
        yield Value(What.CARDS, meta.cards_of_one_node, file, line, CARDS_OF_NODE)
    elif meta.world_size and "world_size" not in named:
        yield Value(What.CARDS, meta.world_size, file, line, "number of cards")
    if meta.batch_size and not {"batch_size", "global_batch_size"} & set(named):
        line, words = line_of("batch_size", "global_batch_size"), "batch per card"
        if not {"batch_size", "global_batch_size"} & lines.keys():
            words += ", from its throughput and step time"
        yield Value(What.BATCH, meta.batch_size, file, line, words, Of.CARD)
    kind = precision_class(meta.precision)
    if kind and "precision" not in named:
        line = line_of(*_PRECISION_FACTS)
        yield Value(What.PRECISION, kind, file, line, f"precision {meta.precision}")
