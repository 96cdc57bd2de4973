"""Describes the job of one run: by its log, else by the file's name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from profkit.importers.logs.facts import NameHints
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Metadata, Record, Scope

_FIELDS = ("batch_size", "global_batch_size", "precision", "model", "device", "last_step")


def metadata_from_log(
    found: Found, first: int, end: float, samples_per_step: int | None
) -> Metadata:
    """Return what the log says about the run between two lines.

    If the log states only the cards per node, they are multiplied by the nodes. A number of samples
    that the user gave replaces the log's batch sizes.
    """
    facts = found.facts_between(first, end)
    world = facts.get("world_size")
    if world is None and facts.get("cards_per_node"):
        world = facts["cards_per_node"] * (facts.get("nodes") or 1)
    fields: dict[str, Any] = {name: facts.get(name) for name in _FIELDS}
    if samples_per_step:
        fields.update(batch_size=samples_per_step, global_batch_size=None)
    return Metadata(world_size=world, versions=found.versions, **fields)


def add_name_hints(
    metadata: Metadata, hints: NameHints, grammar: Grammar, records: Sequence[Record] = ()
) -> Metadata:
    """Fill what neither the log nor its records say from the file's name.

    The name's number of cards also replaces that of the log if the log speaks of one node of
    several.
    """
    from_name: dict[str, Any] = {}
    named, stated = hints.world_size or 0, metadata.world_size
    is_one_of_several_nodes = stated and named > stated and named % stated == 0
    if named and (stated is None or is_one_of_several_nodes):
        from_name["world_size"] = named
    if metadata.precision is None and hints.precision:
        from_name["precision"] = hints.precision
    log_has_batch = metadata.batch_size is not None or metadata.global_batch_size is not None
    for record in records:
        log_has_batch |= bool(record.samples or (record.throughput and record.step_s))
    if not log_has_batch:
        if hints.global_batch_size:
            from_name["global_batch_size"] = hints.global_batch_size
        elif hints.batch_size and grammar.batch_in_name:
            from_name["batch_size"] = hints.batch_size
    return dataclasses.replace(
        metadata, framework=grammar.framework, from_name=tuple(from_name), **from_name
    )


def batch_size(metadata: Metadata, scope: Scope) -> float | None:
    """Return the samples of a step, of one card or of all."""
    card, total = metadata.batch_size, metadata.global_batch_size
    world = metadata.world_size or 1
    if scope is Scope.CARD:
        if total and not card:
            return total / world
        return card or None
    if card and not total:
        return card * world
    return total or None


def learn_batch(metadata: Metadata, records: Sequence[Record], grammar: Grammar) -> Metadata:
    """Fill missing batch sizes from the records' samples, unless these are words."""
    sizes = Counter(round(each.samples) for each in records if each.samples)
    if grammar.unit == "words" or not sizes:
        return metadata
    usual = sizes.most_common(1)[0][0]
    world = metadata.world_size or 1
    if grammar.scope is Scope.CARD:
        card, total = usual, usual * world
    else:
        card, total = max(1, usual // world), usual
    return dataclasses.replace(
        metadata,
        batch_size=metadata.batch_size or card,
        global_batch_size=metadata.global_batch_size or total,
    )
