"""Trainings with `paddle.Model.fit`: `train_paddle.py CALLBACKS...`.

Each number trains once with as many callbacks; -1 trains with one that fails.
"""

from __future__ import annotations

import functools
import json
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")

import paddle  # noqa: E402  # it warns as it is imported

from profkit.callbacks.paddle_model import ProfkitCallback  # noqa: E402
from tests.callbacks.jobs.shared import break_callbacks, run_shown  # noqa: E402


class Watch(paddle.callbacks.Callback):
    """Keeps what `fit` tells of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, step: int | None = None, logs: Any = None) -> None:
        self.losses.append(logs["loss"][0])


class CountedMomentum(paddle.optimizer.Momentum):
    """Counts its steps."""

    count = 0

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        return super().minimize(*args, **kwargs)


def train(callbacks: int, accumulate: int) -> dict[str, Any]:
    paddle.seed(0)
    net = paddle.nn.Linear(16, 4)
    data = paddle.io.TensorDataset([paddle.randn([30, 16]), paddle.randint(0, 4, [30, 1])])
    model, watch = paddle.Model(net), Watch()
    optimizer = CountedMomentum(0.01, parameters=net.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss())
    fit = functools.partial(
        model.fit,
        eval_data=paddle.io.Subset(data, range(8)),
        batch_size=4,
        epochs=2,
        verbose=0,
        shuffle=False,
        save_dir="out",
        accumulate_grad_batches=accumulate,
    )
    watched = types.SimpleNamespace(
        fit=lambda data, callbacks: fit(data, callbacks=[watch, *callbacks])
    )
    if callbacks == 1:
        run_shown("callbacks.paddle_model", model=watched, data=data)
    else:
        watched.fit(data, [ProfkitCallback() for _ in range(abs(callbacks))])
    model.evaluate(data, batch_size=4, verbose=0)
    return {
        "callbacks": callbacks,
        "accumulate": accumulate,
        "losses": watch.losses,
        "steps": optimizer.count,
    }


def main() -> None:
    for callbacks in map(int, sys.argv[1:]):
        if callbacks < 0:
            break_callbacks()
        for accumulate in (1, 2):
            print("training:", json.dumps(train(callbacks, accumulate)), flush=True)
    raise SystemExit(3)


if __name__ == "__main__":
    main()
