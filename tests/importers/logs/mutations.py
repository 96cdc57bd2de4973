"""Damages logs: no damage may end in a crash, a hang or an unflagged wrong total."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from profkit.importers.logs.assemble import parse_log
from profkit.importers.logs.parsed import ParsedLog
from profkit.importers.logs.placing import place_steps
from tests.importers.logs.samples import SAMPLES, Sample

WRONG = 0.05
"""A mean that is off by more than this is wrong."""


def mutate(data: bytes, random: random.Random) -> bytes:
    """The bytes with a few of them flipped, some cut out, some doubled, or the end cut off."""
    kind = random.random()
    if kind < 0.25:
        return data[: random.randrange(len(data))]
    damaged = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5, 50))):
        place = random.randrange(len(damaged))
        if kind < 0.8:
            damaged[place] ^= 1 << random.randrange(8)
        elif kind < 0.9:
            del damaged[place : place + random.randrange(1, 200)]
        else:
            damaged[place:place] = damaged[place : place + random.randrange(1, 200)]
        if not damaged:
            break
    return bytes(damaged)


@dataclass(frozen=True)
class Outcome:
    """The result of reading one damaged log."""

    seconds: float
    """Of a processor: a machine that pauses makes no log slow."""
    silently_wrong: bool
    why: str = ""


def outcome(sample: Sample, sound: ParsedLog, damaged: bytes) -> Outcome:
    """Read a damaged log; its throughput must be the sound one's, or have a new flag."""
    start = time.thread_time()
    logs = parse_log(lambda: [damaged], sample.name)
    for log in logs:
        place_steps(log)
    seconds = time.thread_time() - start
    if len(logs) != 1:
        return Outcome(seconds, silently_wrong=False)
    made, true = logs[0].mean_throughput, sound.mean_throughput
    known = {flag.text for flag in sound.flags}
    flagged = [flag.text for flag in logs[0].flags if flag.text not in known]
    wrong = made is not None and true is not None and abs(made / true - 1) > WRONG and not flagged
    return Outcome(seconds, wrong, f"{made} instead of {true}" if wrong else "")


def outcomes(count: int, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Yield so many damaged logs of each sample."""
    for name, sample in SAMPLES.items():
        (sound,) = parse_log(lambda sample=sample: [sample.data], sample.name)  # type: ignore[misc]
        numbers = random.Random(f"{seed} {name}")
        for _ in range(count):
            yield name, outcome(sample, sound, mutate(sample.data, numbers))
