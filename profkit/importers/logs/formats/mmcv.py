"""OpenMMLab (mmcv, mmengine): `Iter [8/180]`, `Epoch [1][50/7330]` or `Epoch(train)  [1][ 50/7330]`, means over the iterations since the line before.

Rank 0's times; `time` holds `data_time`. Neither throughput nor batch size is printed: the
configuration before tells the batch of a card. Evaluation and checkpoints are booked on the next
line, as data time or as time.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?:Iter|Epoch) ?(?:\(train\))?\s{0,4}(?:\[ *(\d{1,9})\])?\[ *(\d{1,12})/ *(\d{1,12})\]\s{1,9}(?:base_)?lr: .{0,160}?(?<![\w.])time: [\d.]"
)
_VALIDATION = re.compile(r"(?:Iter|Epoch) ?\(val\)")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step, epoch = as_count(match[2]), as_count(match[1])
        if step is not None:
            if epoch is None:
                found.tell(last_step=as_count(match[3]))
            found.add(
                Record(
                    line.number,
                    step,
                    epoch,
                    find_time(text),
                    number_after(text, "time:"),
                    number_after(text, "data_time:"),
                    None,
                    number_after(text, "loss:"),
                    number_after(text, "lr:"),
                )
            )
    elif "Saving checkpoint" in text or _VALIDATION.search(text):
        found.evaluations.append(line.number)


GRAMMAR = Grammar(
    name="mmcv",
    title="OpenMMLab (mmcv, mmengine: mmseg, mmdet, ...)",
    framework="pytorch",
    marker="time: ",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="samples",
    times=Mean.WINDOW,
    first=1,
    warm_up_records=1,
)
