"""Measure what DALI saves: ResNet50 on generated JPEGs with and without `--dali`.

Both sides have two workers. The images have 500x375 pixels and the crop is small, so that
decoding decides and not the model. Prints throughput and data phase of each side, from the
traces.

    python benchmarks/dali.py [--repeats 3] [--framework paddle]

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

OPTIONS = ("--image-size=32", "--batch-size=32", "--workers=2", "--steps=40", "--warmup=4")
SIDES = {"off": (), "on": ("--dali",)}


def measure(framework: str, options: tuple[str, ...]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "profkit",
            "trace",
            "resnet50",
            f"--framework={framework}",
            *OPTIONS,
            *options,
            "--json",
            f"--output={folder}",
        ]
        figures = json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )
    data = next(part for part in figures["phases"] if part["phase"] == "data")
    return {
        "samples_per_s": figures["throughput_samples_per_s"]["value"],
        "data_ms": data["step_ms"]["value"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--framework", default="torch", choices=("torch", "paddle"))
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(args.repeats):
        for side, options in SIDES.items():
            runs[side].append(measure(args.framework, options))
    medians = {
        side: {name: round(statistics.median(run[name] for run in found), 2) for name in found[0]}
        for side, found in runs.items()
    }
    ratio = medians["on"]["samples_per_s"] / medians["off"]["samples_per_s"]
    print(
        json.dumps(
            {
                "framework": args.framework,
                "repeats": args.repeats,
                **medians,
                "throughput_ratio": round(ratio, 2),
                "all": runs,
            },
            indent=2,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
