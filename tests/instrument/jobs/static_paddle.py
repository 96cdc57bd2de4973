"""Train 12 steps of a static program, and evaluate a copy of it every 4 steps.

After the first step it waits until its trace is open, which takes longer than the job on a busy
machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import paddle

LONGEST_WAIT_S = 120.0


def wait_for_trace() -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while (
        not list(Path(os.environ["PROFKIT_RUN"]).glob("r*/steps.arrows"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)


paddle.enable_static()
inputs, labels = (
    paddle.static.data("inputs", [None, 8]),
    paddle.static.data("labels", [None, 1], dtype="int64"),
)
loss = paddle.nn.functional.cross_entropy(paddle.static.nn.fc(inputs, 4), labels).mean()
evaluation = paddle.static.default_main_program().clone()
paddle.optimizer.SGD(0.01).minimize(loss)
executor = paddle.static.Executor()
executor.run(paddle.static.default_startup_program())
feed = {"inputs": np.ones((6, 8), dtype="float32"), "labels": np.zeros((6, 1), dtype="int64")}
for step in range(12):
    (found,) = executor.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss])
    print(float(found))
    if step == 0 and "PROFKIT_RUN" in os.environ:
        wait_for_trace()
    if step % 4 == 3:
        executor.run(evaluation, feed=feed)
