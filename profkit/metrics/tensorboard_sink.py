"""TensorBoard: event files, written by its own package."""

from __future__ import annotations

import time
from typing import Any

from profkit.errors import ProfkitError
from profkit.metrics.base import Sink
from profkit.metrics.packages import import_package, need_package
from profkit.metrics.points import LATEST, WHOLE, Snapshot, flat_names
from profkit.text import safe_text
from profkit.vocab import RunState

FOLDER = "runs"
"""The folder of runs that TensorBoard's users know."""


class TensorBoard:
    """One scalar for each figure, at the job's step; the folder of a run is one curve."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: Any = None

    def send(self, snapshot: Snapshot) -> None:
        if snapshot.step is None:
            return
        if self._writer is None:
            writers = _import("tensorboard.summary.writer.event_file_writer")
            folder = f"{self._folder}/{snapshot.run}"
            try:
                self._writer = writers.EventFileWriter(folder)
            except OSError as error:
                raise ProfkitError(
                    f"{safe_text(folder)}: {error.strerror}; name a folder that may be written to, "
                    "as in --log-to tensorboard=FOLDER"
                ) from error
        self._write(snapshot, LATEST)

    def _write(self, snapshot: Snapshot, prefix: str) -> None:
        events = _import("tensorboard.compat.proto.event_pb2")
        summaries = _import("tensorboard.compat.proto.summary_pb2")
        values = []
        for name, value in flat_names(snapshot, prefix):
            values.append(summaries.Summary.Value(tag=name, simple_value=value))
        summary = summaries.Summary(value=values)
        event = events.Event(wall_time=time.time(), step=snapshot.step, summary=summary)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self, state: RunState, report: Snapshot | None) -> None:
        del state  # event files have no place for it
        if self._writer is not None:
            if report is not None:
                self._write(report, WHOLE)
            self._writer.close()


def _import(module: str) -> Any:
    return import_package(module, "--log-to tensorboard", "tensorboard")


def open_sink(place: str) -> Sink:
    need_package("tensorboard", "--log-to tensorboard", "tensorboard")
    return TensorBoard(place or FOLDER)
