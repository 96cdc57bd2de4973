"""The figures of the list of runs, kept in the cache so that each run is read once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from pathlib import Path

from profkit.analysis.views.runs import RunFigures, read_figures
from profkit.cache import cache_root
from profkit.errors import ProfkitError
from profkit.frame.estimate import Estimate
from profkit.show.json import dumps
from profkit.trace.jsonfile import read_json, replace_json
from profkit.tui.library import stamp
from profkit.version import __version__


def figures_of(run: Path) -> RunFigures:
    """Return the figures of a run, from the cache unless the run's files have changed."""
    try:
        current = [__version__, *stamp(run)]
    except OSError:
        return read_figures(run)
    name = str(run.resolve()).encode("utf-8", "surrogateescape")
    file = cache_root() / "runs" / f"{hashlib.sha256(name).hexdigest()[:32]}.json"
    with contextlib.suppress(ProfkitError, TypeError, KeyError):  # then it is read again
        content = read_json(file)
        if content.get("stamp") == current:
            kept = content["figures"]
            for field in ("throughput", "step_ns"):
                value = math.nan if kept[field]["value"] is None else kept[field]["value"]
                kept[field] = Estimate(**(kept[field] | {"value": value}))
            return RunFigures(**kept)
    figures = read_figures(run)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_json(
            file, json.loads(dumps({"stamp": current, "figures": dataclasses.asdict(figures)}))
        )
    return figures
