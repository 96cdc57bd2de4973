"""What a screen shows, without a terminal: as JSON, and as a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from profkit.analysis.views.runs import RunRow, arrange_runs, list_runs
from profkit.errors import UsageError
from profkit.report import run_json
from profkit.text import did_you_mean
from profkit.tui.app import FIRST_SCREEN, ProfkitApp, load_screens
from profkit.tui.library import Library
from profkit.tui.widgets.figures import figures_of
from profkit.tui.widgets.share import as_picture

__all__ = ["FIRST_SCREEN", "check_screen", "read_runs", "runs_twin", "take_picture", "twin"]


SHORT_S = 0.01
QUIET_LOOKS = 3


def check_screen(name: str) -> None:
    """An unknown screen is a `UsageError` that names the nearest."""
    known = load_screens()
    if name and name not in known:
        raise UsageError(
            f"unknown screen '{name}'{did_you_mean(name, known)} (there are: {', '.join(known)})"
        )


def twin(path: Path, screen: str, bases: Sequence[Path] = ()) -> Any:
    """What `--screen NAME --json` prints: the screen's own view, as JSON's values."""
    kind = load_screens()[screen]
    if kind.COMPARES and not bases:
        raise UsageError(f"the screen {screen} compares runs: add --base RUN")
    return kind.to_json(Library().view(screen, kind.build, path, bases if kind.COMPARES else ()))


def runs_twin(folder: Path) -> Any:
    """What `--json` prints of a folder of runs."""
    return run_json.runs(read_runs(folder))


def read_runs(folder: Path) -> tuple[RunRow, ...]:
    """The runs of a folder with their figures."""
    heads = list_runs(folder)
    return arrange_runs(heads, {head.path: figures_of(head.path) for head in heads})


def take_picture(app: ProfkitApp, size: tuple[int, int]) -> str:
    """The first screen of the app as SVG, once it shows its view."""
    return asyncio.run(_picture(app, size))


async def _picture(app: ProfkitApp, size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        return as_picture(app.export_screenshot(title="profkit", simplify=True))


async def settle(pilot: Pilot[None]) -> None:
    """Wait until nothing is built or drawn any more: what is drawn may start a worker, and what that has built is drawn again."""
    quiet = 0
    while quiet < QUIET_LOOKS:
        await pilot.pause()
        quiet += 1
        if not all(worker.is_finished for worker in pilot.app.workers):
            quiet = 0
            await asyncio.sleep(SHORT_S)
