"""Grammar of detectron2.

    eta: 6:09:40  iter: 39  total_loss: 1.905 ... time: 0.2626  data_time: 0.0191  lr: ...

`time` is the mean over the whole run without its first three iterations, `data_time` the mean of
the last twenty iterations, and losses are medians of twenty. No throughput is printed.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"eta: .{1,40}?iter: (\d{1,12})\s{1,9}total_loss: .{1,600}?(?<!\w)time: ")
_SPEED = re.compile(
    r"Overall training speed: (\d{1,12}) iterations in [\d:.]{1,30} "
    r"\((\d{1,9}(?:\.\d{1,9})?) s / it\)"
)
_BATCH = re.compile(r"IMS_PER_BATCH: (\d{1,8})")
_UNTIMED_STEPS = 3


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        found.add_record(
            line,
            as_count(match[1]),
            time_s=find_time(text),
            step_s=number_after(text, "time:"),
            data_s=number_after(text, "data_time:"),
            loss=number_after(text, "total_loss:"),
            lr=number_after(text, "lr:"),
        )
    elif match := _SPEED.search(text):
        how = "mean over the run, without hooks"
        found.add_result(line.number, "step time", float(match[2]), "s", how)
    elif "d2.evaluation" in text or "Saving checkpoint" in text:
        found.evaluation_lines.append(line.number)
    elif "IMS_PER_BATCH" in text and (match := _BATCH.search(text)):
        found.add_facts(global_batch_size=as_count(match[1]))


def steps_in_mean(step: int) -> int:
    """Return the number of iterations in the mean printed at `step`."""
    return step + 1 - _UNTIMED_STEPS


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
    restarts_each_epoch=False,
    steps_in_mean=steps_in_mean,
    rounding_s=5e-5,
)
