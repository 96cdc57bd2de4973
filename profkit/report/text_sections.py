"""The check of a text against its commands and logs, as sections and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from profkit.importers.texts.check import TextCheck
from profkit.importers.texts.values import Outcome, Value
from profkit.report.document import Section
from profkit.text import plural, safe_text

_TITLES = {
    Outcome.CONTRADICTS: "Contradictions",
    Outcome.INCONCLUSIVE: "Inconclusive",
    Outcome.AGREES: "Agrees",
}


def checked(found: TextCheck) -> Iterator[Section]:
    """Yield the findings by their outcome, the contradictions first."""
    counts = []
    for outcome, noun in (
        (Outcome.CONTRADICTS, "contradiction"),
        (Outcome.INCONCLUSIVE, "inconclusive statement"),
        (Outcome.AGREES, "agreeing statement"),
    ):
        counts.append(plural(len(found.of(outcome)), noun))
    compared = "compared with its commands only"
    if found.logs:
        logs = ", ".join(_names(found.logs))
        compared = f"compared with its commands and {plural(len(found.logs), 'log')}: {logs}"
    elif not found.unread:
        compared = "compared with its commands; no log of it was found (give one with --log)"
    lines = [compared]
    if found.unread:
        lines.append(f"no training log that profkit knows: {', '.join(_names(found.unread))}")
    yield Section(f"{safe_text(found.page.path.name)}: {', '.join(counts)}", tuple(lines))
    for outcome, title in _TITLES.items():
        words = []
        for each in found.of(outcome):
            words.append(safe_text(f"{each.stated.what.value}: {each.words}"))
        if words:
            yield Section(title, tuple(words))


def as_json(found: TextCheck) -> dict[str, Any]:
    findings = []
    for each in found.findings:
        findings.append(
            {
                "what": each.stated.what.value,
                "outcome": each.outcome.value,
                "stated": _value(each.stated),
                "compared_with": list(map(_value, each.found)),
                "why": each.why or None,
            }
        )
    return {
        "text": safe_text(found.page.path.name),
        "logs": _names(found.logs),
        "unread_logs": _names(found.unread),
        "findings": findings,
    }


def _names(logs: Sequence[Path]) -> list[str]:
    return [safe_text(log.name) for log in logs]


def _value(value: Value) -> dict[str, Any]:
    """Return a value with its place; a line of 0 would be no line, and is null."""
    return {
        "value": value.value,
        "of": value.of.value or None,
        "file": value.file,
        "line": value.line or None,
        "words": safe_text(value.words),
    }
