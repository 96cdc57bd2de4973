"""Compares what a text states with the commands in it and with logs.

A statement is compared only with what is surely about the same run: the words right before a
command with that command, the words of a link with the log behind it, a figure of a table with the
one log of its setting, and a text that states one value in all with the only log. What is ambiguous
is inconclusive, and what nothing can be compared with is not reported.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from profkit.errors import ProfkitError
from profkit.importers.texts.commands import find_requests
from profkit.importers.texts.figures import check_figures, check_speed_ups, judge_figure
from profkit.importers.texts.log_values import LogRun, name_values, read_log_runs
from profkit.importers.texts.markdown import Block, Kind, Link, TextLine, TextPage, read_page
from profkit.importers.texts.statements import find_statements
from profkit.importers.texts.tables import find_figures
from profkit.importers.texts.values import (
    CARDS_OF_NODE,
    Finding,
    Of,
    Outcome,
    Value,
    What,
    distinct,
)
from profkit.text import safe_text

MOST_LOGS = 200
"""A text may link to a whole archive, or lie in it; logs that are given are all read."""

_LOG_SUFFIXES = frozenset({"", ".log", ".txt", ".out"})
_INTRODUCES = re.compile(r"[:：][\s*]*$|如下|以下|\b(?:following|below)\b", re.IGNORECASE)
"""The words before a command that say that it follows; others can be about anything."""
_SETTINGS = (What.CARDS, What.BATCH, What.PRECISION)


@dataclass(frozen=True)
class TextCheck:
    """The findings about a text, and the logs that it was compared with."""

    page: TextPage
    logs: tuple[Path, ...]
    findings: tuple[Finding, ...]
    unread: tuple[Path, ...] = ()
    """Logs that were given, and in which no training was found."""

    def of(self, outcome: Outcome) -> list[Finding]:
        return [each for each in self.findings if each.outcome is outcome]


def check_text(path: Path, logs: Sequence[Path] = ()) -> TextCheck:
    """Check a Markdown file against its commands, the logs that it links to, and those given."""
    page = read_page(path)
    file = safe_text(path.name)
    given = list(logs)
    for link in page.links:
        target = _target(page, link)
        if target is not None and target.is_file() and target.suffix.lower() != ".md":
            given.append(target)
    by_path = _read_logs(given, max(MOST_LOGS, len(logs)))
    if not any(by_path.values()):
        beside = []
        for each in sorted(page.path.parent.iterdir()):
            if each.is_file() and each.suffix.lower() in _LOG_SUFFIXES:
                beside.append(each)
        by_path = _read_logs(beside, MOST_LOGS)
    runs = [run for found in by_path.values() for run in found]
    figures = list(find_figures(page.blocks, file))
    findings = [
        *_check_commands(page.blocks, file),
        *_check_links(page, file, by_path),
        *check_figures(figures, runs),
        *check_speed_ups(figures),
        *_check_whole(page.blocks, file, runs),
    ]
    once: dict[tuple[Value, tuple[str, ...]], Finding] = {}
    for finding in findings:
        places = tuple(value.place for value in finding.found)
        once.setdefault((finding.stated, places), finding)
    used = tuple(log for log, found in by_path.items() if found)
    unread = tuple(log for log in dict.fromkeys(logs) if log not in used)
    return TextCheck(page, used, tuple(once.values()), unread)


def _read_logs(paths: Iterable[Path], most: int) -> dict[Path, list[LogRun]]:
    """Return the runs of the first logs; none for a file that is none or cannot be read."""
    by_path: dict[Path, list[LogRun]] = {}
    for log in list(dict.fromkeys(paths))[:most]:
        by_path[log] = []
        with contextlib.suppress(ProfkitError, OSError):
            by_path[log] = read_log_runs(log)
    return by_path


def _target(page: TextPage, link: Link) -> Path | None:
    name = unquote(link.target.partition("#")[0])
    if "://" in name or not name or name.startswith("/"):
        return None
    return Path(os.path.normpath(page.path.parent / name))


# -- words and commands ----------------------------------------------------------------------------


def _check_commands(blocks: Sequence[Block], file: str) -> Iterator[Finding]:
    """Compare the words that introduce a block of commands with it."""
    for place, block in enumerate(blocks):
        if block.kind is not Kind.CODE:
            continue
        asked = list(find_requests(block.lines, file))
        introduction: list[TextLine] = []  # a paragraph, and a heading-like one before it
        for before in blocks[max(0, place - 2) : place][::-1]:
            text = " ".join(line.text for line in before.lines)
            if before.kind is not Kind.WORDS or not _INTRODUCES.search(text):
                break
            introduction[:0] = before.lines
        stated = list(find_statements(introduction, file))
        yield from _compare_settings(stated, asked, _single(asked, What.CARDS))


def _compare_settings(
    stated: Sequence[Value], found: Sequence[Value], cards: float | None
) -> Iterator[Finding]:
    for what in _SETTINGS:
        said = [each for each in stated if each.what is what]
        others = [each for each in found if each.what is what]
        yield from _compare(said, others, cards)


def _compare(
    stated: Sequence[Value], found: Sequence[Value], cards: float | None
) -> Iterator[Finding]:
    """Compare statements of one kind with what a command or a log says of it."""
    said, others = distinct(stated), distinct(found)
    if not said or not others:
        return
    matching = []
    for each in said:
        if any(_is_same(each, other, cards) for other in others):
            matching.append(each)
    if len(said) == 1 and len(others) == 1:
        outcome = Outcome.AGREES if matching else Outcome.CONTRADICTS
        yield Finding(outcome, said[0], tuple(others))
        return
    if len(said) == len(matching) and len(others) == 1:
        yield Finding(Outcome.AGREES, said[0], tuple(others))
        return
    names = " and ".join(each.shown for each in said)
    why = f"the text states {names} here, so it is not clear which is meant"
    if len(said) == 1:
        why = "the command or log states several values, so it is not clear which is meant"
    yield Finding(Outcome.INCONCLUSIVE, said[0], tuple(others), why)


def _is_same(stated: Value, other: Value, cards: float | None) -> bool:
    """Return true if two values can be the same; a batch is of a card or of all cards."""
    if stated.value == other.value:
        return True
    if isinstance(stated.value, str) or isinstance(other.value, str):
        return False
    if stated.what is What.CARDS and other.words == CARDS_OF_NODE:
        return stated.value % other.value == 0
    if stated.what is not What.BATCH or not cards or cards == 1:
        return False
    of_all = stated.of is not Of.CARD and stated.value == other.value * cards
    of_card = stated.of is not Of.ALL and stated.value * cards == other.value
    return of_all or (of_card and other.of is not Of.CARD)


def _single(values: Iterable[Value], what: What) -> float | None:
    """Return the only value of a kind, if there is one."""
    found = {each.value for each in values if each.what is what}
    value = found.pop() if len(found) == 1 else None
    if isinstance(value, int | float):
        return value
    return None


# -- links -----------------------------------------------------------------------------------------


def _check_links(page: TextPage, file: str, by_path: dict[Path, list[LogRun]]) -> Iterator[Finding]:
    """Compare the words of each link with the name of the log behind it, and with the log."""
    for link in page.links:
        target = _target(page, link)
        if target is None or target.suffix.lower() in {".md", ".html", ""}:
            continue
        stated = list(find_statements([TextLine(link.line, link.words)], file))
        runs = by_path.get(target, [])
        sources: list[list[Value]] = [list(name_values(target.name))]
        sources += [list(run.values) for run in runs if len(runs) == 1]
        for found in sources:
            cards = _single(found, What.CARDS) or _single(stated, What.CARDS)
            yield from _compare_settings(stated, found, cards)


# -- the whole text --------------------------------------------------------------------------------


def _check_whole(blocks: Sequence[Block], file: str, runs: Sequence[LogRun]) -> Iterator[Finding]:
    """Compare what the whole text states with the only log, if it states one value of a kind."""
    if len(runs) != 1:
        return
    (run,) = runs
    lines: list[TextLine] = []
    for block in blocks:
        if block.kind in (Kind.WORDS, Kind.HEADING):
            lines += block.lines
    stated = list(find_statements(lines, file))
    for what in _SETTINGS:
        values = [each for each in stated if each.what is what]
        found = run.of(what) or [each for each in name_values(run.path.name) if each.what is what]
        yield from _compare(values, found, run.cards)
    for what in (What.LOSS, What.THROUGHPUT):
        for each in distinct(value for value in stated if value.what is what):
            if known := run.of(what):
                yield judge_figure(each, known, run.cards)
