"""The contents of a screen without a terminal: as JSON values, and as a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.geometry import Region
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from profkit.analysis.views.runs import RunRow, arrange_runs, list_runs
from profkit.errors import UsageError
from profkit.report.runs_document import runs
from profkit.show.json import document
from profkit.text import did_you_mean
from profkit.tui.app import FIRST_SCREEN, ProfkitApp, load_screens
from profkit.tui.library import Library
from profkit.tui.widgets.figures import figures_of
from profkit.tui.widgets.share import picture_of

__all__ = ["FIRST_SCREEN", "check_screen", "read_runs", "runs_twin", "take_picture", "twin"]

WORKER_CHECK_S = 0.01
"""The time between two checks for running workers."""

QUIET_CHECKS = 3
"""The app has settled after this many checks without a worker and without a change of its layout.

Drawing may start a worker, and a widget that has got a new size may draw something else.
"""


def check_screen(name: str) -> None:
    """Raise a `UsageError` that names the nearest screen if there is none of this name."""
    known = load_screens()
    if name and name not in known:
        raise UsageError(
            f"unknown screen '{name}'{did_you_mean(name, known)} (there are: {', '.join(known)})"
        )


def twin(path: Path, screen: str, bases: Sequence[Path] = ()) -> Any:
    """Return the JSON values that `--screen NAME --json` prints."""
    kind = load_screens()[screen]
    if not kind.COMPARES:
        bases = ()
    elif not bases:
        raise UsageError(f"the screen {screen} compares runs: add --base RUN")
    return kind.to_json(Library().view(screen, kind.build, path, bases))


def runs_twin(folder: Path) -> Any:
    """Return the JSON values that `--json` prints for a folder of runs."""
    return document(runs(read_runs(folder), folder))


def read_runs(folder: Path) -> tuple[RunRow, ...]:
    """Return the runs of a folder with their figures."""
    heads = list_runs(folder)
    return arrange_runs(heads, {head.path: figures_of(head.path) for head in heads})


def take_picture(app: ProfkitApp, size: tuple[int, int]) -> str:
    """Return the first screen of the app as SVG, when it shows its view."""

    async def run() -> str:
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            return picture_of(app)

    return asyncio.run(run())


async def settle(pilot: Pilot[None]) -> None:
    """Wait until nothing is built or drawn any more."""
    quiet = 0
    layout: list[Region] = []
    while quiet < QUIET_CHECKS:
        await pilot.pause()
        quiet += 1
        before, layout = layout, _layout_of(pilot.app.screen)
        if layout != before:
            quiet = 0
        if not all(worker.is_finished for worker in pilot.app.workers):
            quiet = 0
            await asyncio.sleep(WORKER_CHECK_S)


def _layout_of(screen: Screen[Any]) -> list[Region]:
    return [widget.region for widget in screen.walk_children(Widget, with_self=True)]
