"""Plant hangs into small jobs, and count how often profkit names rank, class and line.

python benchmarks/hangs/hangs.py run            run the missing ones into --work, and go on there
python benchmarks/hangs/hangs.py score          show the verdicts as a table
python benchmarks/hangs/hangs.py score --write  also write docs/results/hangs.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # results.py

import results
from hang_plants import BOTH, HEALTHY, HERE, PLANTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("plants", nargs="*", metavar="PLANT")
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-hangs"))
    parser.add_argument("--framework", choices=BOTH, action="append")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--limit", type=float, default=4.0, help="seconds without a step")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run together")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_intermixed_args()
    if args.what == "score":
        from hang_scoring import score

        found = score(args.work)
        print(json.dumps(found, indent=1))
        if args.write:
            results.write("hangs", found)
        return
    for framework in args.framework or BOTH:
        jobs = []
        for ranks in args.ranks or [2, 4]:
            for plant in (*PLANTS, HEALTHY):
                folder = args.work / f"{framework}-{ranks}-{plant.name}-{args.limit:g}"
                is_wanted = not args.plants or plant.name in args.plants
                if is_wanted and not (folder / "result.json").exists():
                    jobs.append(f"{plant.name}/{ranks}")
        if jobs:
            host = [
                sys.executable,
                HERE / "hang_host.py",
                framework,
                args.work,
                args.at_once,
                args.limit,
                *jobs,
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(list(map(str, host)), env=environment, check=True)


if __name__ == "__main__":
    main()
