"""Train jobs on one GPU bare and under `profkit run`, and keep the runs and the jobs' own clocks.

    python benchmarks/gpu_jobs/record.py --work FOLDER [NAME ...]

Jobs take turns on the device: they import side by side, and then wait for each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "programs"
PATIENCE_S = 120
SIDE_BY_SIDE = 4
LEAST_S = 15.0
HANG_AFTER_S, SPIN_S = 4, 10

IMAGES = "--batch 256 --workers 8"
TEXT = "--model text --batch 32"
SMALL = "--model small --batch 8 --length 128 --steps 200"
JOBS: dict[str, str] = {
    "images": IMAGES,
    "images_items": f"{IMAGES} --fault item_syncs",
    "images_pageable": f"{IMAGES} --fault pageable",
    "images_layout": f"{IMAGES} --fault layout_copies",
    "images_slow_data": f"{IMAGES} --fault slow_data --wait-ms 2",
    "images_slow_host": f"{IMAGES} --fault slow_host --late-ms 30",
    "images_loop": f"{IMAGES} --fault loop_optimizer",
    "images_ddp": f"{IMAGES} --parallel ddp",
    "images_read": f"{IMAGES} --read-every 1",
    "images_late_sync": f"{IMAGES} --fault late_sync --steps 300 --read-every 50",
    "images_late": f"{IMAGES} --fault late_slow --steps 300 --late-ms 40",
    "images_again": IMAGES,
    "text": TEXT,
    "text_compiled": f"{TEXT} --compile default",
    "images_fp16": f"{IMAGES} --precision fp16",
    "images_fp32": f"{IMAGES} --precision fp32",
    "images_empty_cache": f"{IMAGES} --fault empty_cache",
    "images_checkpoints": f"{IMAGES} --fault checkpoints",
    "images_evaluation": f"{IMAGES} --fault evaluation",
    "text_fsdp": f"{TEXT} --parallel fsdp",
    "small": SMALL,
    "small_graphs": f"{SMALL} --compile reduce-overhead",
}
PROFILED = {"images", "images_layout", "text", "text_compiled", "small"}
"""Jobs that also run without profkit, and measure their kernels with torch.profiler."""

KERNELS = {"images", "images_items", "images_pageable", "images_layout", "images_loop", "small"}
"""Jobs recorded with windows of kernels in addition."""

OTHERS: dict[str, tuple[str, ...]] = {
    "trainer_lm": ("trainer.py", "lm"),
    "trainer_glue": ("trainer.py", "glue"),
    "lightning": ("lightning_auto.py",),
    "lightning_gan": ("lightning_gan.py",),
}
"""Programs of benchmarks/programs that take the GPU by themselves."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--also", default="", help="options for every job, such as --batch 4")
    parser.add_argument("--limit-s", type=float, default=PATIENCE_S * len(JOBS))
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    args = parser.parse_intermixed_args()
    args.work.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.limit_s
    names = args.names or [*JOBS, *OTHERS, "hang"]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        done = list(pool.map(lambda name: record(args.work, name, args.also, until), names))
    if not all(done):
        raise SystemExit("some jobs failed, or there was no time for them")


def record(work: Path, name: str, also: str, until: float) -> bool:
    """Run the sides of a job, each with a log; return true if all of them ended well in time."""
    is_done = True
    folder = work / name
    folder.mkdir()
    for side in sides(name):
        left_s = until - time.monotonic()
        if left_s < LEAST_S:
            print(f"{name} {side}: no time left", flush=True)
            is_done = False
            continue
        code = launch(prepare(name, side, also, folder), work, folder / side, left_s)
        print(f"{name} {side}: {code}", flush=True)
        is_done &= code.startswith("0 ")
    return is_done


def prepare(name: str, side: str, also: str, folder: Path) -> list[str]:
    """Return the command of one side of a job."""
    more = f"{also} --phases" if side == "bare" else also
    words = [sys.executable, *command(name, more, folder / f"{side}.json")]
    if side == "bare":
        return words
    options = {"kernels": ["--kernels", "40:42"]}.get(side, [])
    if name == "hang":
        options = ["--hang-after", f"{HANG_AFTER_S}"]
    run = [sys.executable, "-m", "profkit", "run", *options]
    return [*run, "--name", name, "-o", str(folder / side), "--", *words]


def sides(name: str) -> list[str]:
    wanted = {"bare": name in PROFILED, "recorded": True, "kernels": name in KERNELS}
    return [side for side, is_wanted in wanted.items() if is_wanted]


def command(name: str, also: str, out: Path) -> list[str]:
    if name in OTHERS:
        script, *words = OTHERS[name]
        return [str(PROGRAMS / "jobs" / script), *words]
    options = f"--fault hang --spin-s {SPIN_S}" if name == "hang" else JOBS[name]
    words = [str(HERE / "job.py"), *options.split(), *also.split(), "--out", str(out)]
    if "--parallel" not in words:
        return words
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", *words]


def launch(words: list[str], work: Path, side: Path, left_s: float) -> str:
    """Return the exit code of a command and its seconds; its output goes into a log."""
    environment = {**os.environ, "GPU_LOCK": str(work / "lock"), "HF_HUB_OFFLINE": "1"}
    probe, place = (side.with_name(f"{side.name}_{kind}") for kind in ("probe", "place"))
    place.mkdir()
    if side.parent.name in OTHERS:
        probe.mkdir()
        paths = (environment.get("PYTHONPATH", ""), PROGRAMS / "probe")
        environment |= {"PROBE_OUT": str(probe), "PYTHONPATH": os.pathsep.join(map(str, paths))}
    began = time.monotonic()
    with side.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=place,
            start_new_session=True,
        )
        try:
            code = str(process.wait(min(left_s, PATIENCE_S)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = "too late"
    return f"{code} in {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    main()
