"""Damage logs of every grammar, read them, and count failures.

    python benchmarks/mutate_logs.py [--count 50000] [--seed 0] [--logs FOLDER]

Each synthetic log of the tests is damaged `--count` times: flipped bits, bytes removed or
doubled, the end cut off. With `--logs`, the files of a folder share this number. Prints a line
per grammar: the slowest reading, the most memory, and the number of totals that were wrong by
more than 5 % without a flag. Exits 1 if there was one, or if a reading took over 5 s. Raises if a
reading raised.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from profkit.importers.logs.assemble import parse_log
from tests.importers.logs.mutations import Outcome, mutate, outcome, outcomes
from tests.importers.logs.samples import Sample

SLOWEST_S = 5.0
LARGEST_BYTES = 400_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path)
    args = parser.parse_args()
    made = (
        of_files(args.logs, args.count, args.seed) if args.logs else outcomes(args.count, args.seed)
    )
    return show(made)


def of_files(folder: Path, count: int, seed: int) -> Iterator[tuple[str, Outcome]]:
    """Return damaged real logs by grammar, without large ones, which would take all the time."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size <= LARGEST_BYTES
    ]
    for path in files:
        data = path.read_bytes()
        sound = parse_log(lambda data=data: [data], path.name)  # type: ignore[misc]  # bound now
        numbers = random.Random(f"{seed} {path}")
        for _ in range(max(1, count // len(files))):
            sample = Sample(sound[0].grammar, path.name, "")
            yield sound[0].grammar, outcome(sample, sound[0], mutate(data, numbers))


def show(made: Iterator[tuple[str, Outcome]]) -> int:
    """Print a line per grammar; return 1 if one has a failure."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for name, each in made:
        found[name].append(each)
        if each.silently_wrong:
            print(f"  {name}: {each.why}", file=sys.stderr)
    print(f"{'log':24}{'damaged':>9}{'slowest':>10}{'silently wrong':>16}")
    for name, all_of_it in found.items():
        wrong = sum(each.silently_wrong for each in all_of_it)
        print(
            f"{name:24}{len(all_of_it):>9,}{max(each.seconds for each in all_of_it):>8.2f} "
            f"s{wrong:>16,}"
        )
    every = [each for all_of_it in found.values() for each in all_of_it]
    print(
        f"{len(every):,} damaged logs, none raised; most memory "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB"
    )
    return int(any(each.silently_wrong or each.seconds > SLOWEST_S for each in every))


if __name__ == "__main__":
    sys.exit(main())
