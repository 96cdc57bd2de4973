"""The contract of a sink, and the sinks that an option of the command line names."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from profkit.errors import UsageError
from profkit.metrics.points import Snapshot
from profkit.text import safe_text
from profkit.vocab import RunState

TEXTFILE_SUFFIX = ".prom"
TRACKERS = ("mlflow", "wandb", "tensorboard")


class Sink(Protocol):
    """Somewhere that metrics go. An error is a `ProfkitError` with the place and the remedy."""

    def send(self, snapshot: Snapshot) -> None:
        """Hand over the present metrics."""

    def close(self, state: RunState, report: Snapshot | None) -> None:
        """Hand over what is still buffered, and how the job ended.

        `report` has the figures of the whole run, which a tracker keeps next to the latest ones.
        """


def open_export(place: str) -> Sink:
    """Return the sink of `--export-to`: a textfile, or the address of an OTLP receiver."""
    if place.startswith(("http://", "https://")):
        from profkit.metrics.otlp import Otlp

        return Otlp(place)
    if not place.endswith(TEXTFILE_SUFFIX):
        raise UsageError(
            f"--export-to {safe_text(place)}: neither a file that ends in {TEXTFILE_SUFFIX} (the "
            "textfile collector reads no other) nor an address that begins with http"
        )
    from profkit.metrics.prometheus import Textfile

    return Textfile(Path(place))


def open_tracker(word: str) -> Sink:
    """Return the sink of `--log-to`: a tracker's name, with `=PLACE` if it needs one."""
    tracker, _, place = word.partition("=")
    if tracker not in TRACKERS:
        known = ", ".join(TRACKERS)
        raise UsageError(f"--log-to {safe_text(word)}: not one of {known}")
    module = importlib.import_module(f"profkit.metrics.{tracker}_sink")
    sink: Sink = module.open_sink(place)
    return sink
