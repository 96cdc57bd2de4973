"""Launches the ranks of sharded jobs, and writes what came of them into docs/accuracy.md."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from page_sections import replace_section

DOCUMENT = Path(__file__).parents[1] / "docs/accuracy.md"
PATIENCE_S = 300


class Page(NamedTuple):
    """What a benchmark is asked for, and the part of docs/accuracy.md that it writes."""

    description: str
    names: Sequence[str]
    begin: str
    end: str
    """The marks around that part."""


def torchrun(job: Path, ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs a script on so many ranks of this machine."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [sys.executable, *launcher, str(job), *arguments]


def record_into(runs: Path, command: Sequence[str]) -> list[str]:
    """Return the command that records another one, without collectors."""
    options = ["--output", str(runs), "--collect", "none"]
    return [sys.executable, "-m", "profkit", "run", *options, "--", *command]


def start(command: Sequence[str], what: str, **variables: str) -> str:
    """Run a command on the CPU and return its output; one that fails ends the benchmark."""
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise SystemExit(f"{what}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def is_done(folder: Path) -> bool:
    return (folder / "done").exists()


def once(folder: Path, launch: Callable[[Path], object]) -> None:
    """Launch a job into its folder, unless it is there already."""
    if is_done(folder):
        return
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    folder.mkdir(parents=True)
    launch(folder)
    (folder / "done").touch()
    print(folder, flush=True)


def command_line(
    page: Page,
    run: Callable[[Path, Sequence[str]], None],
    score: Callable[[Path, Sequence[str]], tuple[str, bool]],
) -> int:
    """Run what is missing, or print and write what came of it; 0 if all of it is right."""
    parser = argparse.ArgumentParser(
        description=page.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["run", "score"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default=",".join(page.names), help="names of jobs, with commas")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.verb == "run":
        run(options.work, names)
        return 0
    section, is_right = score(options.work, names)
    print(section)
    if options.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        text = replace_section(text, section + "\n", page.begin, page.end)
        DOCUMENT.write_text(text, encoding="utf-8")
    return 0 if is_right else 1
