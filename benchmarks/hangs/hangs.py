"""Plant hangs into small jobs, and count how often profkit names rank, class and line.

python benchmarks/hangs/hangs.py run            run the missing ones into --work, and go on there
python benchmarks/hangs/hangs.py score          show the verdicts as a table
python benchmarks/hangs/hangs.py score --write  also write docs/hangs-accuracy.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from hang_plants import BOTH, DEVELOPMENT, HEALTHY, HELD_OUT, HERE, PLANTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "score"))
    parser.add_argument("plants", nargs="*", metavar="PLANT")
    parser.add_argument("--work", type=Path, default=Path("/tmp/profkit-hangs"))
    parser.add_argument("--framework", choices=BOTH, action="append")
    parser.add_argument("--variant", choices=(DEVELOPMENT, HELD_OUT), action="append")
    parser.add_argument("--ranks", type=int, action="append")
    parser.add_argument("--limit", type=float, default=4.0, help="seconds without a step")
    parser.add_argument("--at-once", type=int, default=3, help="jobs that run together")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true", help="score jobs that gloo ended apart")
    args = parser.parse_intermixed_args()
    if args.what == "score":
        from hang_scoring import score, score_again

        if args.again:
            score_again(args.work, write=args.write)
        else:
            score(args.work, write=args.write)
        return
    for framework in args.framework or BOTH:
        jobs = []
        for variant in args.variant or [DEVELOPMENT, HELD_OUT]:
            for ranks in args.ranks or [2, 4]:
                for plant in (*PLANTS, HEALTHY):
                    folder = (
                        args.work / f"{framework}-{ranks}-{variant}-{plant.name}-{args.limit:g}"
                    )
                    is_wanted = not args.plants or plant.name in args.plants
                    is_done = (folder / "result.json").exists()
                    if is_wanted and framework in plant.frameworks and not is_done:
                        jobs.append(f"{plant.name}/{variant}/{ranks}")
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
