"""What the job of one run was: as its log says, else as the file's name does."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from profkit.importers.logs.facts import NameHints
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Metadata, Record, Scope

_FIELDS = ("batch_size", "global_batch_size", "precision", "model", "device", "last_step")


def facts_of(found: Found, first: int, end: float, told_samples: int | None) -> Metadata:
    """What the log says of the run between two lines, and the user of its samples; cards of one node times the nodes where it tells these alone."""
    told = found.facts_of(first, end)
    world = told.get("world_size")
    if world is None and told.get("cards_a_node"):
        world = told["cards_a_node"] * (told.get("nodes") or 1)
    fields: dict[str, Any] = {name: told.get(name) for name in _FIELDS}
    if told_samples:
        fields.update(batch_size=told_samples, global_batch_size=None)
    return Metadata(world_size=world, versions=found.versions, **fields)


def complete(
    facts: Metadata, hints: NameHints, grammar: Grammar, records: Sequence[Record] = ()
) -> Metadata:
    """What the log says, and the file's name where neither it nor its records say anything, or where it speaks of one node of several."""
    from_name: dict[str, Any] = {}
    several_nodes = (
        facts.world_size
        and hints.world_size
        and hints.world_size > facts.world_size
        and hints.world_size % facts.world_size == 0
    )
    if hints.world_size and (facts.world_size is None or several_nodes):
        from_name["world_size"] = hints.world_size
    if facts.precision is None and hints.precision:
        from_name["precision"] = hints.precision
    shown = any(each.samples or (each.throughput and each.step_s) for each in records)
    if facts.batch_size is None and facts.global_batch_size is None and not shown:
        if hints.global_batch_size:
            from_name["global_batch_size"] = hints.global_batch_size
        elif hints.batch_size and grammar.batch_in_name:
            from_name["batch_size"] = hints.batch_size
    return dataclasses.replace(
        facts, framework=grammar.framework, from_name=tuple(from_name), **from_name
    )


def batch_size(metadata: Metadata, scope: Scope) -> float | None:
    """A step's samples, of one card or of all."""
    world = metadata.world_size or 1
    if scope is Scope.CARD:
        return metadata.batch_size or (
            metadata.global_batch_size / world if metadata.global_batch_size else None
        )
    return metadata.global_batch_size or (
        metadata.batch_size * world if metadata.batch_size else None
    )


def learn_batch(metadata: Metadata, records: Sequence[Record], grammar: Grammar) -> Metadata:
    """The batch sizes, from the records' samples where nothing else told them; not where samples are words."""
    samples = Counter(round(each.samples) for each in records if each.samples)
    if grammar.unit == "words" or not samples:
        return metadata
    usual, world = samples.most_common(1)[0][0], metadata.world_size or 1
    card, total = (
        (usual, usual * world) if grammar.scope is Scope.CARD else (max(1, usual // world), usual)
    )
    return dataclasses.replace(
        metadata,
        batch_size=metadata.batch_size or card,
        global_batch_size=metadata.global_batch_size or total,
    )
