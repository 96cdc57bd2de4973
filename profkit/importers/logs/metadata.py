"""Describes the job of one run: by its log, else by the file's name."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from profkit.importers.logs.facts import NameHints, settle_precision
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.knobs import PREFIX
from profkit.importers.logs.parsed import VARYING, Flag, Metadata, Record, Scope, Stated

_FIELDS = (
    *("batch_size", "global_batch_size", "model", "device", "last_step", "accumulation"),
    "data_ranks",
)
_SAME_BATCH = 0.15
"""A batch fits a stated throughput if it differs by a smaller share: start-up is in the latter."""


def metadata_from_log(
    found: Found, first: int, end: float, samples_per_step: int | None
) -> Metadata:
    """Return what the log says about the run between two lines.

    If the log states only the cards per node, they are multiplied by the nodes. A number of samples
    that the user gave replaces the log's batch sizes.
    """
    facts = found.facts_between(first, end)
    world, of_one_node = facts.get("world_size"), False
    if world is None and facts.get("cards_per_node"):
        of_one_node = not facts.get("nodes")
        world = facts["cards_per_node"] * (facts.get("nodes") or 1)
    fields: dict[str, Any] = {name: facts.get(name) for name in _FIELDS}
    if samples_per_step:
        fields.update(batch_size=samples_per_step, global_batch_size=None, accumulation=None)
    knobs = {}
    for name, value in facts.items():
        if name.startswith(PREFIX):
            knobs[name.removeprefix(PREFIX)] = value
    return Metadata(
        world_size=world,
        cards_of_one_node=world if of_one_node else None,
        precision=settle_precision(facts),
        command_batch=facts.get("command_batch"),
        command_precision=facts.get("command_precision"),
        versions=found.versions,
        knobs=knobs,
        **fields,
    )


def add_name_hints(
    metadata: Metadata, hints: NameHints, grammar: Grammar, records: Sequence[Record] = ()
) -> Metadata:
    """Fill what neither the log nor its records say from the file's name.

    The name's number of cards also replaces the log's if the log only states the cards of a node.
    """
    from_name: dict[str, Any] = {}
    named, stated = hints.world_size or 0, metadata.world_size
    of_node = metadata.cards_of_one_node or 0
    is_one_of_several_nodes = of_node > 1 and named > of_node and named % of_node == 0
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
    world = metadata.sample_ranks
    if scope is Scope.CARD:
        if total and not card:
            return total / world
        return card or None
    if card and not total:
        return card * world
    return total or None


def settle_accumulation(
    metadata: Metadata, records: Sequence[Record], stated: Sequence[Stated]
) -> tuple[Metadata, list[Flag]]:
    """Settle if the batch that a log states is an update's or a micro batch's.

    NVIDIA's BERT has `train_batch_size` for either. The throughput that the log itself states, over
    the time between its lines, decides; otherwise a batch that the accumulation divides is an
    update's, because a script divides it before it starts.
    """
    times, batch = metadata.accumulation or 1, metadata.batch_size
    if times == 1 or batch is None or metadata.global_batch_size:
        return metadata, []
    world = metadata.world_size or 1
    update_samples = _samples_of_update(records, stated)
    if update_samples is None:
        if batch > times and batch % times == 0:
            return metadata, []
        text = (
            f"the log does not say whether its batch of {batch} is one of {times} that an update "
            "accumulates; it counts as one of them. Give --samples-per-step"
        )
        return dataclasses.replace(metadata, batch_size=batch * times), [Flag(text)]
    for of_card in (batch, batch * times, batch / world):
        if abs(of_card * world / update_samples - 1) <= _SAME_BATCH:
            return dataclasses.replace(metadata, batch_size=round(of_card)), []
    samples = round(update_samples / world)
    text = (
        f"neither the batch of {batch} nor {times} of them fit the throughput that the log states; "
        f"that one gives {samples:,} samples per update and card. Give --samples-per-step"
    )
    return dataclasses.replace(metadata, batch_size=samples), [Flag(text)]


def _samples_of_update(records: Sequence[Record], stated: Sequence[Stated]) -> float | None:
    """Return the samples of all cards between two lines, by the stated throughput."""
    passed = []
    for before, record in itertools.pairwise(records):
        if before.time_s is not None and record.time_s is not None:
            passed.append((record.time_s - before.time_s) / max(1, record.index - before.index))
    for each in stated:
        if each.what == "throughput" and each.value > 0 and passed:
            samples = each.value * statistics.median(passed)
            if samples >= 1:
                return samples
            return None
    return None


def learn_batch(metadata: Metadata, records: Sequence[Record], grammar: Grammar) -> Metadata:
    """Fill missing batch sizes from the records' samples, unless these are words."""
    sizes = Counter(round(each.samples) for each in records if each.samples and not each.partial)
    if grammar.unit in VARYING or not sizes:
        return metadata
    usual = sizes.most_common(1)[0][0]
    world = metadata.sample_ranks
    if grammar.scope is Scope.CARD:
        card, total = usual, usual * world
    else:
        card, total = max(1, usual // world), usual
    return dataclasses.replace(
        metadata,
        batch_size=metadata.batch_size or card,
        global_batch_size=metadata.global_batch_size or total,
    )
