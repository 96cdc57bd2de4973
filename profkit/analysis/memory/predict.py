"""The peak of another size of the batch, from two recordings that differ in it.

The last step of both is cut into parts of the same progress, as the peak may move from one part to
another. In each part, the bytes of a line in both runs say how they grow.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profkit.analysis.memory.classify import ENGINE, STEPPING, Classifier
from profkit.analysis.memory.plain_pickle import load_plain
from profkit.analysis.memory.replay import find_totals, replay
from profkit.analysis.memory.snapshot import DeviceMemory, SnapshotError, read_snapshot
from profkit.analysis.memory.stacks import Caller
from profkit.errors import UnreadableError
from profkit.trace import Trace
from profkit.vocab import MEMORY_OF_WINDOW

PARTS = 20
"""Parts of the forward pass, of the backward pass and of the optimizer's step."""
_SAME = ("parameters_fingerprint", "precision", "optimizer")
Held = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Sizes:
    """The size in which two runs differ, and the one that is asked for."""

    before: int
    after: int
    asked: int
    shape: str = ""
    """The shape of a batch of the size that is asked for."""


def predict(before: Trace, after: Trace) -> tuple[Sizes, int] | None:
    """Return the bytes allocated at the peak of twice the larger size, if it can be predicted."""
    sizes = find_sizes(before.manifest.config, after.manifest.config)
    if sizes is None or before.manifest.world_size != after.manifest.world_size:
        return None
    memories: list[DeviceMemory] = []
    for trace in (before, after):
        for path in sorted(trace.path.glob(f"{MEMORY_OF_WINDOW}-*.pickle"))[:1]:
            with contextlib.suppress(UnreadableError, SnapshotError):
                memories += read_snapshot(load_plain(path, ""))
    if len(memories) != 2:  # one device of each run
        return None
    peak = predict_peak(memories[0], memories[1], sizes)
    return None if peak is None else (sizes, peak)


def find_sizes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Sizes | None:
    """Return the length that differs in the shapes of batches, to be doubled, if one does."""
    for name in _SAME:
        if not before.get(name) or before[name] != after.get(name):
            return None
    shapes = []
    for config in (before, after):
        if int(config.get("batch_shapes_distinct", 0)) not in (1, 2):  # the last may be smaller
            return None
        tensors = str(config["batch_shapes"]).split(", ")
        shapes.append([list(map(int, tensor.split("x"))) for tensor in tensors if tensor])
    if list(map(len, shapes[0])) != list(map(len, shapes[1])):
        return None
    changed = set()
    for both in zip(*shapes, strict=True):
        for place, lengths in enumerate(zip(*both, strict=True)):
            if len(set(lengths)) > 1:
                changed.add((place, *lengths))
    if len(changed) != 1:
        return None
    ((place, old_length, new_length),) = changed
    asked = 2 * max(old_length, new_length)
    shape = [*shapes[1][0]]
    shape[place] = asked
    return Sizes(old_length, new_length, asked, "x".join(map(str, shape)))


def predict_peak(before: DeviceMemory, after: DeviceMemory, sizes: Sizes) -> int | None:
    """Return the allocated bytes at the peak; `None` if the two do not have the same parts."""
    parts = _parts(before), _parts(after)
    if len(parts[0]) != len(parts[1]) or not parts[0]:
        return None
    peaks = []
    for first, second in zip(*parts, strict=True):
        total = 0.0
        for key in first | second:
            total += _grow(first[key], second[key], sizes)
        peaks.append(total)
    return round(max(peaks))


def _grow(before: float, after: float, sizes: Sizes) -> float:
    """Return bytes at the size that is asked for, from those at two sizes.

    They have a constant and a linear part, or a linear and a quadratic one if they grow faster, as
    the scores of attention do with the length.
    """
    (low, few), (high, many) = sorted([(sizes.before, before), (sizes.after, after)])
    ratio = high / low
    if few >= many:
        return many
    if not few:
        return many * sizes.asked / high
    if many <= few * ratio:
        return few + (many - few) * (sizes.asked - low) / (high - low)
    if many <= few * ratio**2:
        quadratic = (many / high - few / low) / (high - low)
        return sizes.asked * (few / low + quadratic * (sizes.asked - low))
    return few * math.pow(sizes.asked / low, math.log(many / few, ratio))


def _parts(memory: DeviceMemory) -> list[Held]:
    """Return what is held at the fullest moment of each part of the last step."""
    found = replay(memory)
    classifier = Classifier(memory.events, found.lives)
    totals = find_totals(memory.events, found.lives)
    phases: list[list[int]] = [[], [], []]
    for number in range(len(memory.events) - 1, -1, -1):
        if memory.events[number].action == "alloc":
            phase = _phase_of(classifier.caller_at(number))
            if any(phases[:phase]):  # the step before
                break
            phases[phase].append(number)
    held = []
    for numbers in phases:
        for part in _cut(numbers[::-1]):
            moment = max(part, key=totals.__getitem__)
            sums: Held = Counter()
            for life in found.lives:
                if life.is_held(moment):
                    sums[life.stack.line, life.stack.outer] += life.size
            held.append(sums)
    return held


def _phase_of(caller: Caller) -> int:
    if caller in STEPPING:
        return 2
    return int(caller in ENGINE)


def _cut(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Cut a phase into parts, and a short one into fewer."""
    count = min(PARTS, len(numbers))
    cuts = [len(numbers) * part // max(1, count) for part in range(count + 1)]
    return [numbers[low:high] for low, high in itertools.pairwise(cuts)]
