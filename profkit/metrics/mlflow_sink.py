"""MLflow: a run in the experiment `profkit`, logged by its own client."""

from __future__ import annotations

import time
from typing import Any

from profkit.errors import ProfkitError
from profkit.metrics.base import Sink
from profkit.metrics.packages import import_package, need_package
from profkit.metrics.points import LATEST, WHOLE, Snapshot, flat_names
from profkit.vocab import RunState

EXPERIMENT = "profkit"
_INSTALL = "mlflow-skinny"


class MLflow:
    """One metric for each figure, at the job's step."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Any = None
        self._run_id = ""

    def send(self, snapshot: Snapshot) -> None:
        if snapshot.step is None:
            return
        if self._client is None:
            try:
                self._open(snapshot.run)
            except Exception as error:  # the client's own errors are of many kinds
                first = str(error).strip().partition("\n")[0]
                place = self._address or "its default place"
                raise ProfkitError(
                    f"MLflow at {place}: {first}; name a server with --log-to "
                    "mlflow=http://HOST:5000, or pip install mlflow for a local database"
                ) from error
        self._log(snapshot, LATEST)

    def _log(self, snapshot: Snapshot, prefix: str) -> None:
        entities = import_package("mlflow.entities", "--log-to mlflow", _INSTALL)
        now_ms = int(1e3 * time.time())
        metrics = []
        for name, value in flat_names(snapshot, prefix):
            metrics.append(entities.Metric(name, value, now_ms, snapshot.step or 0))
        self._client.log_batch(self._run_id, metrics=metrics)

    def _open(self, name: str) -> None:
        mlflow = import_package("mlflow", "--log-to mlflow", _INSTALL)
        client = mlflow.MlflowClient(tracking_uri=self._address or None)
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        self._run_id = client.create_run(experiment, run_name=name).info.run_id
        self._client = client

    def close(self, state: RunState, report: Snapshot | None) -> None:
        if self._client is not None:
            if report is not None:
                self._log(report, WHOLE)
            status = "FINISHED" if state is RunState.COMPLETE else "FAILED"
            self._client.set_terminated(self._run_id, status)


def open_sink(place: str) -> Sink:
    need_package("mlflow", "--log-to mlflow", _INSTALL)
    return MLflow(place)
