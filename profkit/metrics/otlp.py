"""OpenTelemetry metrics over HTTP: an OTLP receiver gets the figures."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from profkit.errors import ProfkitError, UsageError
from profkit.metrics.packages import import_package
from profkit.metrics.points import METRICS, Metric, Snapshot
from profkit.text import safe_text
from profkit.version import __version__
from profkit.vocab import RunState

PATH = "/v1/metrics"
"""The path of a receiver if the address names none."""

TIMEOUT_S = 5
"""A receiver that does not answer delays the end of `profkit run` by no more than this."""

DISABLED = "OTEL_SDK_DISABLED"
"""The variable with which a job has OpenTelemetry do nothing."""

_INSTALL = "'profkit[otlp]'"

_RETRY = re.compile(r",? retrying in [^,;]*$")
"""The end of a warning of the client."""


class Otlp:
    """Sends a gauge for each metric. The job's own OpenTelemetry settings are left alone."""

    def __init__(self, address: str) -> None:
        self._address = complete_address(address)
        self._snapshot = Snapshot((), None)
        name = "OTLP"
        exporters = import_package(
            "opentelemetry.exporter.otlp.proto.http.metric_exporter", name, _INSTALL
        )
        metrics = import_package("opentelemetry.sdk.metrics", name, _INSTALL)
        export = import_package("opentelemetry.sdk.metrics.export", name, _INSTALL)
        resources = import_package("opentelemetry.sdk.resources", name, _INSTALL)
        if os.environ.get(DISABLED, "").strip().lower() == "true":
            raise UsageError(
                f"--export-to {safe_text(address)}: {DISABLED} is set, so that OpenTelemetry sends "
                "nothing; unset it, or use --export-to FILE.prom"
            )
        self._said = _LastWords()
        logging.getLogger("opentelemetry").addHandler(self._said)
        exporter = exporters.OTLPMetricExporter(endpoint=self._address, timeout=TIMEOUT_S)
        self._succeeded, self._result = export.MetricExportResult.SUCCESS, None
        exporter.export = self._noting_result(exporter.export)
        self._reader = export.PeriodicExportingMetricReader(
            exporter, export_interval_millis=math.inf, export_timeout_millis=1e3 * TIMEOUT_S
        )
        resource = resources.Resource.create({"service.name": "profkit"})
        self._provider = metrics.MeterProvider(
            metric_readers=[self._reader], resource=resource, shutdown_on_exit=False
        )
        meter = self._provider.get_meter("profkit", __version__)
        for metric in METRICS.values():
            meter.create_observable_gauge(
                metric.name, [self._callback_of(metric)], metric.unit, metric.help
            )

    def _noting_result(self, export: Callable[..., Any]) -> Callable[..., Any]:
        """Return the exporter's method, whose result the reader drops."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._result = export(*args, **kwargs)
            return self._result

        return noted

    def _callback_of(self, metric: Metric) -> Any:
        api = import_package("opentelemetry.metrics", "OTLP", _INSTALL)

        def observe(_options: object) -> Iterable[Any]:
            points = [point for point in self._snapshot.points if point.metric is metric]
            return [api.Observation(point.value, dict(point.labels)) for point in points]

        return observe

    def send(self, snapshot: Snapshot) -> None:
        self._snapshot, self._result = snapshot, None
        self._said.forget()
        with contextlib.suppress(Exception):  # the exporter may raise what its HTTP client does
            self._provider.force_flush(1e3 * TIMEOUT_S)
        if self._result is not self._succeeded:
            because = f" ({safe_text(words)})" if (words := self._said.words()) else ""
            raise ProfkitError(
                f"{safe_text(self._address)}: no OTLP receiver took the metrics{because}; "
                "check the receiver and its address, or use --export-to FILE.prom"
            )

    def close(self, state: RunState, report: Snapshot | None) -> None:
        del state, report  # the last figures had the state
        self._snapshot = Snapshot((), None)
        try:
            self._provider.shutdown(1e3 * TIMEOUT_S)
        except Exception:  # noqa: BLE001  # the job has ended, and its figures were sent
            return


class _LastWords(logging.Handler):
    """Keeps what the client said last: the result of an export has no reason.

    After several attempts the last error is that there were too many; the warning before it has
    the reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_level: dict[int, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._by_level[record.levelno] = _RETRY.sub("", record.getMessage()).rstrip(".")

    def forget(self) -> None:
        self._by_level.clear()

    def words(self) -> str:
        return "; ".join(self._by_level.values())


def complete_address(address: str) -> str:
    """Return the address with the usual path if it has none."""
    try:
        parts = urlsplit(address)
        has_host = bool(parts.hostname)
        _ = parts.port
    except ValueError:
        has_host = False
    if not has_host:
        raise UsageError(
            f"--export-to {safe_text(address)}: not an address such as http://host:4318"
        )
    return address if parts.path.strip("/") else address.rstrip("/") + PATH
