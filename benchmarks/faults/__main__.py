"""Plant faults into training jobs, and count how often profkit names their cause.

python benchmarks/faults run             run the missing pairs into --work; may be interrupted
python benchmarks/faults score           show what profkit reports of each pair
python benchmarks/faults score --write   also write docs/results/faults.json
python benchmarks/faults list            list the faults and the healthy pairs
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # results.py is next to this folder

import results
from pairs import is_done, run_pairs
from plants import named


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score", "list"))
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="only these")
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-faults"))
    parser.add_argument("--trials", type=int, default=1, help="how often each pair is run")
    parser.add_argument("--write", action="store_true", help="write docs/results/faults.json")
    args = parser.parse_intermixed_args()
    faults = named(args.faults)
    if args.what == "list":
        for fault in faults:
            change = ", ".join(f"{name} {value}" for name, value in fault.change.items())
            print(f"{fault.name:48s} {fault.ranks} ranks  {change}")
        return
    if args.what == "score":
        from scoring import as_text, rows, score_all, summarize

        scores = score_all(args.work, faults)
        print(as_text(scores))
        if args.write:
            results.write("faults", {**summarize(scores), "rows": rows(scores)})
        return
    failed = 0
    for trial in range(args.trials):
        for line in run_pairs(args.work, faults, trial):
            print(f"trial {trial}: {line}", flush=True)
        failed += sum(not is_done(args.work, fault, trial) for fault in faults)
    if failed:
        raise SystemExit(f"{failed} pairs failed; the same command runs these again")


if __name__ == "__main__":
    main()
