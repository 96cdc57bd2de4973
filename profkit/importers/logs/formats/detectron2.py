"""detectron2: `eta: 6:09:40  iter: 39  total_loss: 1.905 ... time: 0.2626  data_time: 0.0191  lr: ...`.

`time` is the mean over the whole run but its first three iterations, `data_time` the mean of the
last twenty, losses are medians of twenty: not the same window. No throughput is printed.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"eta: .{1,40}?iter: (\d{1,12})\s{1,9}total_loss: .{1,600}?(?<!\w)time: ")
_SPEED = re.compile(
    r"Overall training speed: (\d{1,12}) iterations in [\d:.]{1,30} \((\d{1,9}(?:\.\d{1,9})?) s / it\)"
)
_BATCH = re.compile(r"IMS_PER_BATCH: (\d{1,8})")
_NOT_TIMED = 3


def held(step: int) -> int:
    """Iterations in the mean printed at `step`; the first three are never in it."""
    return step + 1 - _NOT_TIMED


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[1])
        if step is not None:
            found.add(
                Record(
                    line.number,
                    step,
                    None,
                    find_time(text),
                    number_after(text, "time:"),
                    number_after(text, "data_time:"),
                    None,
                    number_after(text, "total_loss:"),
                    number_after(text, "lr:"),
                )
            )
    elif match := _SPEED.search(text):
        found.result(
            line.number, "step time", float(match[2]), "s", "mean over the run, without hooks"
        )
    elif "d2.evaluation" in text or "Saving checkpoint" in text:
        found.evaluations.append(line.number)
    elif "IMS_PER_BATCH" in text and (match := _BATCH.search(text)):
        found.tell(global_batch_size=as_count(match[1]))


GRAMMAR = Grammar(
    name="detectron2",
    title="detectron2",
    framework="pytorch",
    marker="total_loss: ",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.RUN,
    data_times=Mean.WINDOW,
    restarts=False,
    held=held,
    rounding_s=5e-5,
)
