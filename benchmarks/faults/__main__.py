"""Inject faults into training jobs, and count how often profkit explains them correctly.

python benchmarks/faults run             run the missing pairs into --work; may be interrupted
python benchmarks/faults score           show what profkit reports, as a table
python benchmarks/faults score --write   also write docs/accuracy.md
python benchmarks/faults list            list the faults
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # slow_lines is next to this folder

from pairs import is_done, run_pairs, why_not
from plants import DEVELOPMENT, FAULTS, SHAPES, Fault, as_words, named
from slow_lines import keep_section

DOCUMENT = Path(__file__).parents[2] / "docs/accuracy.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score", "list"))
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/profkit-faults"),
        help="where the runs lie (%(default)s)",
    )
    parser.add_argument(
        "--variant",
        choices=tuple(SHAPES),
        action="append",
        help="the job that is planted in; may be repeated",
    )
    parser.add_argument("--trials", type=int, default=1, help="how often each pair is run")
    parser.add_argument("--on-gpu", action="store_true", help="only those that need a GPU")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    args = parser.parse_intermixed_args()
    variants = args.variant or [DEVELOPMENT]
    {"run": run, "score": score, "list": show}[args.what](args, variants)


def chosen(args: argparse.Namespace) -> tuple[Fault, ...]:
    return tuple(fault for fault in named(args.faults) if fault.needs_gpu or not args.on_gpu)


def run(args: argparse.Namespace, variants: list[str]) -> None:
    for trial in range(args.trials):
        for variant in variants:
            for line in run_pairs(
                args.work, chosen(args), variant=variant, trial=trial, has_gpu=has_gpu()
            ):
                print(f"{variant}, trial {trial}: {line}", flush=True)
    wanted = [fault for fault in chosen(args) if why_not(fault, has_gpu=has_gpu()) is None]
    failed = sum(
        not is_done(args.work, fault, variant, trial)
        for trial in range(args.trials)
        for variant in variants
        for fault in wanted
    )
    if failed:
        raise SystemExit(f"{failed} pairs failed; the same command runs these again")


def score(args: argparse.Namespace, variants: list[str]) -> None:
    from scoring import as_document, as_text, score_all
    from sections import BEGIN, END, find_healthy, replace_healthy

    scores = score_all(args.work, chosen(args), args.variant or list(SHAPES))
    print(as_text(scores))
    if args.write:
        document = as_document(scores, has_gpu=has_gpu())
        healthy = find_healthy(DOCUMENT.read_text()).removeprefix(BEGIN).removesuffix(END)
        if healthy:
            document = replace_healthy(document, healthy.strip())
        DOCUMENT.write_text(keep_section(document, DOCUMENT.read_text()))


def show(args: argparse.Namespace, variants: list[str]) -> None:
    for fault in FAULTS:
        reason = why_not(fault, has_gpu=has_gpu())
        note = f"  ({reason})" if reason else ""
        ranks = f"{fault.framework:7s}{fault.ranks} ranks"
        print(f"{fault.name:36s} {ranks}  {as_words(fault)}{note}")


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


if __name__ == "__main__":
    main()
