"""Checks of what the log says about its job against the file's name."""

from __future__ import annotations

from profkit.importers.logs.integrity.evidence import Evidence
from profkit.importers.logs.parsed import Flag, ParsedLog


def check_precision(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = evidence.facts.precision, evidence.hints.precision
    if not stated or not named or stated == named:
        return []
    return [Flag(f"the log says precision {stated}, the file's name says {named}")]


def check_cards(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = log.metadata.world_size, evidence.hints.world_sizes
    if len(named) > 1:
        several = " and ".join(map(str, named))
        own = stated or "an unknown number"
        return [Flag(f"the file's name speaks of runs on {several} cards; this one ran on {own}")]
    if not stated or not named or stated == named[0]:
        return []
    return [Flag(f"the log says {stated} cards, the file's name says {named[0]}")]


def check_batch(log: ParsedLog, evidence: Evidence) -> list[Flag]:
    stated, named = log.metadata.batch_size, evidence.hints.batch_size
    if not stated or not named or stated == named:
        return []
    if log.unit == "words" or "batch_size" in log.metadata.from_name:
        return []
    return [Flag(f"the log says {stated} samples per card, the file's name says {named}")]
