"""Plant compile faults into small jobs, and compare profkit with what torch itself counts.

    python benchmarks/compile_faults.py run --work FOLDER [--only NAME,NAME]
    python benchmarks/compile_faults.py score --work FOLDER [--write]

Each fault is a job (`compile_job.py`) compared with the same job without it. The truth of the time
is what torch itself counts (`compilation_time_metrics`). `score --write` writes the table into
docs/accuracy.md. It exits with 1 if a fault is not named, or if times differ by more than 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from page_sections import replace_section

from profkit.analysis.compiling import find_compiling
from profkit.analysis.overview import build_overview
from profkit.explain.explained import explain
from profkit.trace import Trace
from profkit.trace.reader import find_runs

JOB = Path(__file__).parent / "compile_job.py"
DOCUMENT = Path(__file__).parents[1] / "docs/accuracy.md"
BEGIN, END = "<!-- compile faults -->", "<!-- end of compile faults -->"
PATIENCE_S = 300
MOST_APART = 0.02

NAMED: Mapping[str, tuple[str, str]] = {
    "shapes": ("recompiles", "size mismatch"),
    "integer": ("recompiles", "number"),
    "attribute": ("recompiles", "level"),
    "global": ("recompiles", "SCALE"),
    "late branch": ("recompiles", "branch"),
    "print": ("graph_breaks", "compile_job.py"),
    "item": ("graph_breaks", "compile_job.py"),
    "one rank": ("compile_on_one_rank", "rank 1"),
}
"""The cause that names each fault, and a word of its evidence."""


def launch(fault: str, ranks: int, folder: Path) -> None:
    """Record a job."""
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    job = [sys.executable, str(JOB)]
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        job = [sys.executable, *torchrun, str(JOB)]
    job += ["--fault", fault, "--out", str(folder / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "profkit", "run", "--output", str(folder / "runs"), "--", *job],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise SystemExit(f"{folder}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    (folder / "done").touch()


def run(work: Path, names: Sequence[str]) -> None:
    """Record the missing jobs."""
    for name in ("none", "none 2", *names):
        folder = work / name.replace(" ", "_")
        if not (folder / "done").exists():
            ranks = 2 if name in {"one rank", "none 2"} else 1
            launch(name.removesuffix(" 2"), ranks, folder)
            print(name, flush=True)


@dataclass(frozen=True)
class Score:
    """What was said of one fault."""

    name: str
    is_named: bool
    kinds: tuple[str, ...]
    evidence: str
    steps: int
    said_s: float
    torch_s: float

    @property
    def apart(self) -> float:
        return self.said_s / self.torch_s - 1 if self.torch_s else 0.0


def score(name: str, work: Path) -> Score:
    folder = work / name.replace(" ", "_")
    base = work / ("none_2" if name == "one rank" else "none")
    before, after = (Trace.open(find_runs(each / "runs")[0]) for each in (base, folder))
    causes = {cause.kind: cause.evidence for cause in explain(before, after).causes}
    kind, word = NAMED[name]
    evidence = causes.get(kind, "")
    found, rank = find_compiling(after), 1 if name == "one rank" else 0
    said_ns = 0.0
    if found is not None:
        said_ns = float(found.rank_ns[rank].sum()) + found.outside_ns
    own = json.loads((folder / f"out.{rank}.json").read_text(encoding="utf-8"))
    steps = build_overview(after).selection.left_out.get("compiled", 0)
    is_named = word in evidence
    return Score(name, is_named, tuple(causes), evidence, steps, said_ns / 1e9, own["torch_s"])


def table(scores: Sequence[Score]) -> str:
    named = sum(each.is_named for each in scores)
    worst = max(abs(each.apart) for each in scores)
    about = (
        "Small jobs of `torch.compile` with planted faults (`benchmarks/compile_faults.py`), "
        f"compared with the same job without: {named} of {len(scores)} are named. *Torch* is the "
        "time of compilations that torch itself counts; profkit's differs by "
        f"{worst:.1%} at most."
    )
    lines = [
        "## Compile faults",
        "",
        about,
        "",
        "| fault | named | causes | steps left out | profkit | torch | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in scores:
        kinds = ", ".join(f"`{kind}`" for kind in each.kinds) or "-"
        lines.append(
            f"| {each.name} | {'yes' if each.is_named else '**no**'} | {kinds} | {each.steps} | "
            f"{each.said_s:.3f} s | {each.torch_s:.3f} s | {each.apart:+.2%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("what", choices=("run", "score"))
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--only", default="")
    options.add_argument("--write", action="store_true")
    args = options.parse_args()
    names = args.only.split(",") if args.only else list(NAMED)
    if args.what == "run":
        run(args.work, names)
        return
    scores = [score(name, args.work) for name in names]
    text = table(scores)
    print(text)
    for each in scores:
        print(f"{each.name}: {each.evidence}")
    if args.write:
        page = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(replace_section(page, text, BEGIN, END), encoding="utf-8")
    sys.exit(not all(each.is_named and abs(each.apart) <= MOST_APART for each in scores))


if __name__ == "__main__":
    main()
