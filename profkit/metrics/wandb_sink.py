"""Weights & Biases: a run in the project `profkit`, logged by its own client."""

from __future__ import annotations

from typing import Any

from profkit.metrics.base import Sink
from profkit.metrics.packages import import_package, need_package
from profkit.metrics.points import WHOLE, Snapshot, flat_names
from profkit.vocab import RunState

PROJECT = "profkit"


class WeightsAndBiases:
    """One value for each figure, at the job's step."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._run: Any = None

    def send(self, snapshot: Snapshot) -> None:
        if snapshot.step is None:
            return
        if self._run is None:
            wandb = import_package("wandb", "--log-to wandb", "wandb")
            self._run = wandb.init(
                project=PROJECT,
                name=snapshot.run,
                dir=self._folder or None,
                settings=wandb.Settings(console="off"),  # the job's output is its own
            )
        self._run.log(dict(flat_names(snapshot)), step=snapshot.step)

    def close(self, state: RunState, report: Snapshot | None) -> None:
        if self._run is not None:
            if report is not None:
                self._run.summary.update(dict(flat_names(report, WHOLE)))
            self._run.finish(exit_code=int(state is not RunState.COMPLETE))


def open_sink(place: str) -> Sink:
    need_package("wandb", "--log-to wandb", "wandb")
    return WeightsAndBiases(place)
