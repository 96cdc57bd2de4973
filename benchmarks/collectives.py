"""Compare a job's gradient exchange with what the same links reach alone.

ResNet50 trains in DDP on two ranks over gloo. Four modes alternate in the same processes, in a
random order. `overlapped`: steps whose buckets are sent during the backward, as DDP does.
`alone`: all ranks' backwards wait for each bucket. Third, `profkit ceilings --links` at the sizes
of these buckets. `links in a step`: the same messages in the place of buckets, which shows what
the step itself takes from the links.

A bucket's bus bandwidth is profkit's own figure, from the rows of both ranks. Ratios are to the
links of the same turn: the mean over the turns with its 95 % interval.

    python benchmarks/collectives.py [--turns 15] [--steps 5] [--ranks 2] [--image-size 64]
                                     [--batch-size 4]

Exits 1 if the bytes of a step's buckets are not those of the gradients, or if the interval of a
bucket `alone` lies more than 10 % away from its links.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bucket_exchange import train

from profkit.run.ranks import Team, find_endpoint, rank_environment

LIMIT = 0.10
SHORTEST_JUDGED = 1 << 20
"""Smaller messages take less time than a thread takes to wake up: shown, and not judged."""


def main() -> int:
    options = parse()
    if "RANK" in os.environ:
        train(options)
        return 0
    endpoint = find_endpoint(Team(options.ranks))
    environments = [
        {**os.environ, **rank_environment(rank, options.ranks, rank, options.ranks, endpoint)}
        for rank in range(options.ranks)
    ]
    outputs = [subprocess.PIPE, *[subprocess.DEVNULL] * (options.ranks - 1)]
    command = [sys.executable, "-W", "ignore", *sys.argv]
    processes = [
        subprocess.Popen(command, env=environ, stdout=output, text=True)
        for environ, output in zip(environments, outputs, strict=True)
    ]
    told, _ = processes[0].communicate()
    codes = [process.wait() for process in processes]
    if any(codes):
        return 1
    found = {
        **json.loads(told.strip().splitlines()[-1]),
        "machine": f"{os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(found, indent=2))
    return 0 if is_within(found) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5, help="of each case in a turn")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    return parser.parse_args()


def is_within(found: Mapping[str, Any]) -> bool:
    judged = [
        row["alone"]
        for row in found["sizes"]
        if row["bytes"] >= SHORTEST_JUDGED and row["alone"]["ratio"] is not None
    ]
    sound = all(row["high"] >= 1 - LIMIT and row["low"] <= 1 + LIMIT for row in judged)
    return bool(judged) and sound and found["gradient_bytes"] == found["bucket_bytes_per_step"]


if __name__ == "__main__":
    sys.exit(main())
