"""Prometheus' text format: a file for the textfile collector of its node exporter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from profkit.errors import ProfkitError
from profkit.metrics.packages import import_package
from profkit.metrics.points import METRICS, RUN_LABELS, Point, Snapshot
from profkit.text import safe_text
from profkit.vocab import RunState


class Textfile:
    """Replaces a file by a new one; a reader sees the old figures or the new ones."""

    def __init__(self, path: Path) -> None:
        _client()
        self._path = path

    def send(self, snapshot: Snapshot) -> None:
        write_textfile(snapshot.points, self._path)

    def close(self, state: RunState, report: Snapshot | None) -> None:
        """Do nothing: the file stays, with the last figures."""


def write_textfile(points: Iterable[Point], path: Path) -> None:
    """Write the metrics through a temporary file in the same folder."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(_Collector(tuple(points)))
    try:
        client.write_to_textfile(str(path), registry)
    except OSError as error:
        raise ProfkitError(
            f"{safe_text(str(path))}: {error.strerror}; "
            "name a file in a folder that exists and may be written to"
        ) from error


class _Collector:
    """The points as families of one metric each, in the order in which they are documented."""

    def __init__(self, points: tuple[Point, ...]) -> None:
        self._points = points

    def collect(self) -> Iterator[Any]:
        core = import_package("prometheus_client.core", "the Prometheus text format", _INSTALL)
        for metric in METRICS.values():
            own = [point for point in self._points if point.metric is metric]
            if not own:
                continue
            labels = (*RUN_LABELS, *metric.labels)
            family = core.GaugeMetricFamily(metric.name, metric.help, labels=labels)
            for point in own:
                family.add_metric([point.labels[label] for label in labels], point.value)
            yield family


_INSTALL = "'profkit[prometheus]'"


def _client() -> Any:
    return import_package("prometheus_client", "the Prometheus text format", _INSTALL)
