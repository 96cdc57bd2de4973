"""The figures of the list of runs, kept beside other caches so that a folder is read once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from profkit import __version__
from profkit.analysis.estimate import Estimate
from profkit.analysis.views.runs import RunFigures, read_figures
from profkit.cache import cache_root
from profkit.errors import ProfkitError
from profkit.report.as_json import dumps
from profkit.report.view_json import of
from profkit.trace.jsonfile import read_json, replace_json
from profkit.tui.library import stamp


def figures_of(run: Path) -> RunFigures:
    """The figures of a run, from the cache where its files are those that were read then."""
    try:
        now = [__version__, *stamp(run)]
    except OSError:
        return read_figures(run)
    place = (
        cache_root()
        / "runs"
        / f"{hashlib.sha256(str(run.resolve()).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.json"
    )
    kept = _kept(place, now)
    if kept is None:
        kept = read_figures(run)
        _keep(place, now, kept)
    return kept


def _kept(place: Path, now: list[Any]) -> RunFigures | None:
    """What was kept, if it was made of the same files; a cache that cannot be read is none."""
    with contextlib.suppress(ProfkitError, TypeError, KeyError):
        content = read_json(place)
        if content.get("stamp") == now:
            figures = content["figures"]
            return RunFigures(
                **{
                    **figures,
                    "throughput": _estimate(figures["throughput"]),
                    "step_ns": _estimate(figures["step_ns"]),
                }
            )
    return None


def _estimate(content: dict[str, float | None]) -> Estimate:
    value = content["value"]
    return Estimate(float("nan") if value is None else value, content["low"], content["high"])


def _keep(place: Path, now: list[Any], figures: RunFigures) -> None:
    with contextlib.suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(
            place, json.loads(dumps({"stamp": now, "figures": of(dataclasses.replace(figures))}))
        )
