"""Inject faults into training jobs, and count how often profkit explains them correctly.

python benchmarks/faults run             run the missing pairs into --work; may be interrupted
python benchmarks/faults score           show what profkit reports, as a table
python benchmarks/faults score --write   also write docs/accuracy.md
python benchmarks/faults misses          list the wrong reports of the second held-out suite
python benchmarks/faults list            list the faults
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # page_sections is next to this folder

from fault import Fault, as_words
from page_sections import keep_section
from pairs import is_done, run_pairs, why_not
from variants import DEVELOPMENT, HELD_OUT_2, VARIANTS, faults_of, named

DOCUMENT = Path(__file__).parents[2] / "docs/accuracy.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score", "misses", "list"))
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/profkit-faults"),
        help="where the runs lie (%(default)s)",
    )
    parser.add_argument(
        "--variant",
        choices=VARIANTS,
        action="append",
        help="the job that is planted in; may be repeated",
    )
    parser.add_argument("--trials", type=int, default=1, help="how often each pair is run")
    parser.add_argument("--on-gpu", action="store_true", help="only those that need a GPU")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    parser.add_argument(
        "--first", action="store_true", help="keep this as the first score of the second suite"
    )
    args = parser.parse_intermixed_args()
    variants = args.variant or [DEVELOPMENT]
    does = {"run": run, "score": score, "misses": list_misses, "list": show}
    does[args.what](args, variants)


def chosen(args: argparse.Namespace, variant: str) -> tuple[Fault, ...]:
    faults = named(args.faults, variant)
    return tuple(fault for fault in faults if fault.needs_gpu or not args.on_gpu)


def run(args: argparse.Namespace, variants: list[str]) -> None:
    failed = 0
    for trial in range(args.trials):
        for variant in variants:
            faults = chosen(args, variant)
            for line in run_pairs(
                args.work, faults, variant=variant, trial=trial, has_gpu=has_gpu()
            ):
                print(f"{variant}, trial {trial}: {line}", flush=True)
            wanted = [fault for fault in faults if why_not(fault, has_gpu=has_gpu()) is None]
            failed += sum(not is_done(args.work, fault, variant, trial) for fault in wanted)
    if failed:
        raise SystemExit(f"{failed} pairs failed; the same command runs these again")


def score(args: argparse.Namespace, variants: list[str]) -> None:
    from accuracy_page import update_page
    from both_ways import keep_first, score_both_ways
    from scoring import score_all
    from second_page import as_second_text
    from summary import as_text

    wanted = args.variant or list(VARIANTS)
    first = [variant for variant in wanted if variant != HELD_OUT_2]
    scores = score_all(args.work, chosen(args, DEVELOPMENT), first) if first else []
    both_ways = score_both_ways(args.work, args.faults) if HELD_OUT_2 in wanted else []
    print(as_text(scores) if scores else "", as_second_text(both_ways), sep="\n")
    if args.first:
        keep_first(both_ways)
    if args.write:
        before = DOCUMENT.read_text()
        page = update_page(before, scores, both_ways, has_gpu=has_gpu())
        for name in re.findall(r"(?m)^<!-- (?!end of |by )(.+) -->$", before):
            page = keep_section(page, before, f"<!-- {name} -->", f"<!-- end of {name} -->")
        DOCUMENT.write_text(page)


def list_misses(args: argparse.Namespace, variants: list[str]) -> None:
    from both_ways import score_both_ways
    from second_page import as_misses

    print(as_misses(score_both_ways(args.work, args.faults)))


def show(args: argparse.Namespace, variants: list[str]) -> None:
    for variant in variants:
        for fault in faults_of(variant):
            reason = why_not(fault, has_gpu=has_gpu())
            note = f"  ({reason})" if reason else ""
            ranks = f"{fault.framework:7s}{fault.ranks} ranks"
            print(f"{fault.name:40s} {ranks}  {as_words(fault)}{note}")


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


if __name__ == "__main__":
    main()
