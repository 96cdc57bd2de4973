"""Searches the largest batch that fits into the memory of the GPUs."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from profkit.analysis.matrix import Setting
from profkit.bench.process import run_logged
from profkit.bench.run import Plan
from profkit.errors import ProfkitError
from profkit.text import safe_text
from profkit.trace.jsonfile import read_json, replace_json

FOUND_FILE: Final = "largest.json"
"""The sizes that were found, so that an interrupted matrix continues with the same cells."""

TRIAL_STEPS: Final = 10
"""Steps of a trial: the optimizer's memory is taken in the first step, and crops vary."""

OUT_OF_MEMORY: Final = "out of device memory"
"""Words in the error of `profkit trace` if a batch does not fit."""

PRECISION: Final = 16
"""The search ends when the next size to try is less than 1/16 larger."""


def with_largest_batches(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Plan:
    """Return the plan with each cell's batch replaced by the largest that fits."""
    path = folder / FOUND_FILE
    folder.mkdir(parents=True, exist_ok=True)
    found = read_json(path) if path.exists() else {}
    cells = []
    for setting in plan.settings:
        name = plan.name(dataclasses.replace(setting, batch_size=0), 0)
        if name not in found:
            tell(f"searching the largest batch: {plan.describe(setting)} and others: ")
            found[name] = largest_batch(_trial(plan, setting, folder), setting.batch_size)
            replace_json(path, found)
            tell(f"{found[name]}\n")
        cells.append(dataclasses.replace(setting, batch_size=int(found[name])))
    return dataclasses.replace(plan, settings=tuple(cells))


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """Return the largest batch for which `fits` is true, to a sixteenth of it.

    A batch of one that does not fit is an error.
    """
    good, bad = 0, 0
    size = start
    while not bad:
        if fits(size):
            good, size = size, 2 * size
        else:
            bad = size
    while not good:
        if bad == 1:
            raise ProfkitError("not even a batch of one sample fits into the memory of the GPU")
        size = bad // 2
        if fits(size):
            good = size
        else:
            bad = size
    while bad - good > max(1, good // PRECISION):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def _trial(plan: Plan, setting: Setting, folder: Path) -> Callable[[int], bool]:
    """Return the function that trains a few steps with a batch and returns if it fits."""

    def fits(size: int) -> bool:
        place, log = folder / ".largest", folder / "largest.log"
        words = plan.words(dataclasses.replace(setting, batch_size=size), place)
        try:
            code = run_logged([*words, "--steps", str(TRIAL_STEPS)], log, plan.limit_s)
        except subprocess.TimeoutExpired as error:
            raise ProfkitError(
                f"batch {size} did not end within {error.timeout:g} s (--time-limit)"
            ) from error
        shutil.rmtree(place, ignore_errors=True)
        said = log.read_text(encoding="utf-8", errors="replace")
        if code and OUT_OF_MEMORY not in said:
            lines = [line for line in said.splitlines() if line.strip()] or [f"exit code {code}"]
            raise ProfkitError(
                f"batch {size} failed, but not for lack of memory: {safe_text(lines[-1])}"
            )
        return code == 0

    return fits
