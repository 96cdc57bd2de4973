"""Write docs/gpu.md from docs/results/gpu.json.

    python benchmarks/gpu_page.py [--nccl build/gpu/nccl.json]

With `--nccl`, the results of `.ci/gpu nccl` are taken into gpu.json before.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import results
from nccl_ranks import STEPS

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs/gpu.md"
FIGURES = results.RESULTS / "gpu.json"
WIDTH = 119

TESTS = """`.ci/gpu tests` checks that

- the device time of each phase differs from the extent of its kernels by torch.profiler (CUPTI) by
  at most 2 % or 50 us, as the median of 20 steps;
- hooks and the reading of events synchronise nothing (`torch.cuda.set_sync_debug_mode("error")`);
- a capture of a CUDA graph succeeds in all three modes while the writer asks for device times;
- kernels captured through CUPTI alone are those of torch.profiler;
- of two ranks over gloo with tensors on the device, a rank that is 20 ms late makes the other wait
  20 ms longer (within 3 ms)."""

JOBS = (
    "`.ci/gpu jobs` trains ResNet50 (batch 256, bf16, channels last) and a transformer (batch 32, "
    "512 tokens, bf16). The step by `profkit report` differs from the job's own clock by at most "
    "2 % in so many jobs: {within}."
)

COST = (
    "The limit is 0.15 ms, or 1 % of a step. It was missed on short steps. Since then phases are "
    "timed in fewer steps if their marks take more than 0.075 ms and 1 % of a step; what that "
    "gains on a GPU is not measured yet."
)

WINDOW = (
    "torch.profiler leaves CUPTI attached when it ends, and later launches take longer. profkit "
    "therefore sets `TEARDOWN_CUPTI=1`, with CUDA 12.6 or newer, unless the variable is set or the "
    "job has captured CUDA graphs. Windows that open by themselves use torch.profiler for this "
    "reason. Three repeats of each, on an H100:"
)

NO_GPU = (
    "Nothing here has run on a GPU. A stand-in holds each: the simulated device of "
    "`tests/accelerator`, gloo, or a library's names."
)

WITHOUT_GPU = (
    ("NCCL between ranks: `.ci/gpu nccl`", "instrument/test_nccl_ranks.py"),
    ("NCCL between ranks: device times, waiting, exposed parts", "device/test_few_scenarios.py"),
    ("NCCL's flight recorder, read while ranks hang", "hangs/test_flight.py"),
    ("windows of kernels that open by themselves", "instrument/test_automatic_windows.py"),
    ("modules and lines of kernels", "device/test_windows.py"),
    ("fewer timed steps where marks cost too much", "device/test_mark_budget.py"),
    ("NVTX ranges, back from nsys", "importers/test_nsys.py"),
    ("DALI", "workloads/test_gpu_settings.py"),
    ("Paddle 3: times by CUDA events", "device/test_few_scenarios.py"),
    ("Paddle 3: kernels by `paddle.profiler`", "importers/test_kineto.py"),
    ("Paddle 3: SyncBatchNorm's exchange, in captured kernels", "importers/test_paddle_windows.py"),
    ("Paddle 3: NHWC, O1, O2, and where batch norm is shared", "workloads/test_paddle_settings.py"),
    ("Paddle 3: ends of the exchange over NCCL", "device/test_few_scenarios.py"),
)
"""What no GPU has confirmed, and the test below tests/ that holds it without one."""

NOT_TRIED = (
    "Not tried in any way: several GPUs, older devices such as the V100, and what profkit costs a "
    "compiled job. Not built: the bandwidth of single buckets of Paddle over NCCL, whose reducer "
    "shows the end of the last one alone."
)
VERSIONS = {
    "Python": "python",
    "torch": "torch",
    "cuDNN": "cudnn",
    "NCCL": "nccl",
    "cupti-python": "cupti-python",
}


def wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table; columns whose title begins with a tab are numbers."""
    yield f"| {' | '.join(title.strip() for title in columns)} |"
    yield "|" + "|".join("---:" if title.startswith("\t") else "---" for title in columns) + "|"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def page(found: Mapping[str, Any]) -> str:
    """Return the page of these figures."""
    parts = (
        head(found), tests(found), faults(found), nccl(found), cost(found), window(found),
        hang(found), known(found), without_gpu(),
    )  # fmt: skip
    return "\n".join("\n".join(part) + "\n" for part in parts)


def head(found: Mapping[str, Any]) -> Iterator[str]:
    yield "# On a GPU"
    yield ""
    yield from wrapped(
        "`make gpu` (`.ci/gpu`) runs the checks that need a GPU. [gpu.json](results/gpu.json) has "
        "all figures, and `python benchmarks/gpu_page.py` writes this page from them."
    )
    yield ""
    yield from table(
        ("machine, 15 minutes each", "driver, CUDA", "versions", "date"),
        (
            (
                f"{each['machine']}: {each['device']}, {each['host']}",
                f"{each['driver']}, {each['cuda']}",
                ", ".join(f"{name} {each[key]}" for name, key in VERSIONS.items()),
                each["date"],
            )
            for each in found["machines"]
        ),
    )


def tests(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Tests"
    yield ""
    yield TESTS
    yield ""
    passed = [f"{each['machine']}: {each['tests']}" for each in found["machines"]]
    yield f"Passed: {'; '.join(passed)}."


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Jobs with planted faults"
    yield ""
    within = [f"{name}: {count}" for name, count in found["jobs_within_2_percent"].items()]
    yield from wrapped(JOBS.format(within="; ".join(within)))
    yield ""
    yield "Against the job without a fault, on the H200:"
    yield ""
    yield from table(
        ("job", "\town clocks", "verdict", "first cause", "\tits cost, ms"),
        (
            (
                f"`{row['job']}`",
                row["difference of the own clocks"],
                row["verdict"].replace("cannot judge", "inconclusive"),
                quoted(row["first cause"]),
                row["its cost"],
            )
            for row in found["planted_H200"]
        ),
    )
    yield ""
    pairs = found["pairs_of_benchmarks_faults"]
    more = f"Pairs of `benchmarks/faults` named first: {pairs['named_first']} ({pairs['miss']})."
    yield from wrapped(" ".join([*found["found_by_report"], more]))


def quoted(cause: str) -> str:
    return cause if cause == "none" else f"`{cause}`"


def nccl(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Ranks over NCCL"
    yield ""
    done = found.get("nccl")
    if done is None:
        yield from wrapped(
            "`.ci/gpu nccl` runs several ranks on one GPU, next to an independent probe. It has "
            f"not run on a GPU yet. Its scenarios: {', '.join(f'`{name}`' for name in STEPS)}."
        )
        return
    yield f"`.ci/gpu nccl` on {done['machine']}, {done['date']}, commit {done['commit']}:"
    yield ""
    scenarios = dict.fromkeys(check["scenario"] for check in done["checks"])
    rows = []
    for name in scenarios:
        own = [check for check in done["checks"] if check["scenario"] == name]
        wrong = [f"{each['what']}: {each['detail']}" for each in own if not each["is_right"]]
        right = len(own) - len(wrong)
        rows.append((f"`{name}`", f"{right} of {len(own)}", "; ".join(wrong) or "-"))
    yield from table(("scenario", "\tright", "wrong"), rows)


def cost(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Cost"
    yield ""
    yield from wrapped(COST)
    yield ""
    yield from table(
        ("machine", "step", "\tprofkit adds, ms", "\ttorch.profiler adds, ms"),
        (
            (
                each["machine"],
                each["step"],
                f"{each['added_ms']} ({each['interval']})",
                each.get("torch.profiler", "-"),
            )
            for each in found["cost"]
        ),
    )
    yield ""
    marks = found["marks"]
    yield from wrapped(
        f"A mark takes {marks['us']} us in the loops of {marks['jobs']} jobs, and a step of "
        f"`stress` had {marks['per_step_of_stress']} of them. `report` counts them as profkit's "
        "cost."
    )


def window(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## After a window of kernels"
    yield ""
    yield from wrapped(WINDOW)
    yield ""
    yield from table(
        ("window", "\tstep before", "\tstep after it"),
        (
            (each["window"], each["step before"], each["step after it, as a change"])
            for each in found["after_a_window_H100"]
        ),
    )


def hang(found: Mapping[str, Any]) -> Iterator[str]:
    said = found["hang"]
    yield "## A device that hangs"
    yield ""
    yield f"`{said['command']}` with {said['job']} ({said['machine']}, `{said['run']}`):"
    yield ""
    yield "```"
    yield from said["said"]
    yield "```"


def known(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Known and not fixed"
    yield ""
    for each in found["known"]:
        yield from wrapped(each)


def without_gpu() -> Iterator[str]:
    yield "## Never run on a GPU"
    yield ""
    yield from wrapped(NO_GPU)
    yield ""
    yield from table(("what", "test"), ((what, f"`tests/{path}`") for what, path in WITHOUT_GPU))
    yield ""
    yield from wrapped(NOT_TRIED)


def take_nccl(found: dict[str, Any], path: Path) -> None:
    """Take the results of NCCL into the figures, with the machine on which they were measured."""
    given = json.loads(path.read_text(encoding="utf-8"))
    if given["machine"] is None:
        raise SystemExit(f"{path}: not measured on a GPU")
    found["nccl"] = {name: given[name] for name in ("machine", "date", "commit", "checks", "jobs")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nccl", type=Path, metavar="FILE")
    args = parser.parse_args()
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    if args.nccl is not None:
        take_nccl(found, args.nccl)
        FIGURES.write_text(results.as_rows(found), encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
