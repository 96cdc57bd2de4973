"""Flip bytes of traces and cut them. Each import must give a run or one clear line.

    python benchmarks/mutate_traces.py [--count 50000] [--formats kineto nsys ...] [--seed 0]

Each mutation is imported in this process with an alarm. Allowed are a run that verifies, or an
`UnreadableError` of one line. Not allowed are any other exception, a hang over 5 s, and growing
memory. A changed digit cannot be noticed in a text without checksums; in a gzipped one it is.
Exits 1 at any failure.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trace_samples import SOURCES

from profkit.errors import UnreadableError
from profkit.importers.base import Importer, Target
from profkit.importers.reading.plan import recognise
from profkit.plugins import IMPORTERS
from profkit.trace import verify
from profkit.vocab import Integrity

LONGEST_S = 5
MOST_GROWTH_MB = 200.0
_MARKS = b'"\\{}[],:0eE.-+nNtX \x00\xff\n'


class HungError(Exception):
    """Reading took longer than allowed."""


@dataclass
class Found:
    """Counts of the mutations' outcomes, and the failures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    growth_mb: float = 0.0


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with some bytes flipped, replaced, removed or repeated, or cut."""
    made = bytearray(content)
    if chance.random() < 0.25:
        del made[chance.randrange(len(made)) :]
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not made:
            break
        place = chance.randrange(len(made))
        kind = chance.randrange(5)
        if kind == 0:
            made[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            made[place] = chance.choice(_MARKS)
        elif kind == 2:
            made[place] = chance.randrange(256)
        elif kind == 3:
            del made[place : place + chance.randrange(1, 40)]
        else:
            made[place:place] = made[place : place + chance.randrange(1, 200)]
    return bytes(made)


def mutate_format(name: str, content: bytes, count: int, seed: int, *, suffix: str = "") -> Found:
    """Import `count` mutations of `content` in this format."""
    importer: Importer = IMPORTERS.load(name)
    chance, found = random.Random(seed), Found()
    before = _peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rank0{suffix}"
        for number in range(count):
            mutated = mutate(content, chance)
            path.write_bytes(mutated)
            begun = time.perf_counter()
            try:
                found.outcomes[_import(importer, path, Path(folder) / "traces")] += 1
            except (Exception, HungError) as error:  # noqa: BLE001  # any other error is a failure
                found.failures.append(
                    f"{name}, seed {seed}, mutation {number}: {type(error).__name__}: {error}"[:300]
                )
            found.slowest_s = max(found.slowest_s, time.perf_counter() - begun)
    found.growth_mb = _peak_mb() - before
    if found.growth_mb > MOST_GROWTH_MB + 2 * len(content) / 1e6:
        found.failures.append(f"{name}: memory grew by {found.growth_mb:.0f} MB")
    return found


def _import(importer: Importer, path: Path, traces: Path) -> str:
    """Import one file: `refused`, or `read` if every run of it verifies. Raise otherwise."""
    signal.alarm(LONGEST_S)
    try:
        recognise(path, {importer.name: importer})
        runs = list(importer.read([path], Target(traces)))
        states = {verify(made.run).state for made in runs}
    except UnreadableError as error:
        if "\n" in str(error):
            raise ValueError("an error of several lines") from error
        return "refused"
    finally:
        signal.alarm(0)
        shutil.rmtree(traces, ignore_errors=True)
    if not states <= {Integrity.COMPLETE, Integrity.ENDED_EARLY}:
        raise ValueError(f"a run that is {states}")
    return "read, and flagged" if any(made.flags for made in runs) else "read"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _hang(number: int, frame: FrameType | None) -> None:
    raise HungError(f"longer than {LONGEST_S} s")


def run(forms: Sequence[str], count: int, seed: int) -> dict[str, Found]:
    """Read the mutations of each form, with an alarm."""
    previous = signal.signal(signal.SIGALRM, _hang)
    try:
        return {
            form: mutate_format(
                SOURCES[form][0], SOURCES[form][1](), count, seed, suffix=SOURCES[form][2]
            )
            for form in forms
        }
    finally:
        signal.signal(signal.SIGALRM, previous)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--formats", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = run(arguments.formats, arguments.count, arguments.seed)
    shown = {
        form: {
            **each.outcomes,
            "slowest_s": round(each.slowest_s, 2),
            "growth_mb": round(each.growth_mb, 1),
            "failures": each.failures[:20],
        }
        for form, each in found.items()
    }
    print(json.dumps(shown, indent=2))
    return 1 if any(each.failures for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
