"""The table of programs, as text and as docs/programs.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from compare import Verdict, as_row
from environment import SHOWN

HEADINGS = (
    "program",
    "ranks",
    "steps, of the probe's",
    "samples, of the probe's",
    "phases as the probe's",
    "unknown",
    "losses equal to the bit",
    "CPU s, bare -> recorded",
    "verdict",
)

INTRODUCTION = """# Programs: what profkit records of real training programs

Each program is a small script that uses a package's public interface as the package's own
examples do, with generated data. It trains twice: bare, and under `profkit run` without changes. A
probe that knows nothing of profkit runs with both jobs. It counts steps by the optimizers' own step
hooks and samples by wrapping the loaders' `collate_fn`. It times `Tensor.backward`, optimizer steps
and waits for a batch with its own clock. `make programs` runs all programs and writes this page.
The scripts are in `benchmarks/programs/jobs`.
"""

EXPLANATION = """
- **steps, samples**: what profkit recorded, and what the probe counted. A loop without a loader has
  no samples unless the user states them (`--samples-per-step`).
- **phases**: `data`, `backward` and `optimizer` are compared within the recorded steps after the
  first, without resets of gradients, which the probe does not time. The largest difference, as a
  share of the wall time, is in parentheses. More than 3 % is a miss. The probe cannot time a
  forward, nor an optimizer whose closure computes the gradients.
- **losses**: the loss of every backward in every process, compared bit by bit.
- **CPU**: processor seconds of the whole job with all of its processes, including the start and the
  opening of files. These are single runs on a shared machine.
"""


def as_text(verdicts: Sequence[Verdict]) -> str:
    """Return the misses, and how many programs are right."""
    lines = [f"{each.program.name}: {miss}" for each in verdicts for miss in each.misses]
    for each in verdicts:
        if each.skipped:
            lines.append(f"{each.program.name}: {each.skipped}")
    return "\n".join([*lines, _summary(verdicts)])


def _summary(verdicts: Sequence[Verdict]) -> str:
    run = [each for each in verdicts if not each.skipped]
    right = sum(not each.misses for each in run)
    words = (
        f"{right} of the {len(run)} programs that were run are right in everything that the probe"
    )
    left = len(verdicts) - len(run)
    return f"{words} checks." + (f" {left} were not run." if left else "")


def as_document(verdicts: Sequence[Verdict], packages: dict[str, Any]) -> str:
    versions = [f"{name} {packages['versions'].get(name, '-')}" for name in SHOWN]
    made = sorted({each.made for each in verdicts if each.made})
    dates = " to ".join(dict.fromkeys((made[0], made[-1]))) if made else "never"
    own = f"profkit {version('profkit')}, Python {platform.python_version()}"
    today = datetime.now(timezone.utc).date()
    parts = [INTRODUCTION]
    parts.append(f"Run {dates}; written {today}; {own}, {', '.join(versions)}; no GPU.\n")
    parts.append(f"**{_summary(verdicts)}**\n")
    rows = [as_row(each) for each in verdicts if not each.skipped]
    parts.append(_table(HEADINGS, rows))
    parts.append(EXPLANATION)
    parts.append("## Misses\n")
    missed = [f"- {each.program.about}: {miss}." for each in verdicts for miss in each.misses]
    parts.append("\n".join(missed or ["None."]) + "\n")
    parts.append("## Not run\n")
    skipped = [f"- {each.program.about}: {each.skipped}." for each in verdicts if each.skipped]
    parts.append("\n".join(skipped or ["None."]) + "\n")
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"
