"""Grammar of OpenMMLab (mmcv, mmengine).

    Iter [8/180] lr: ... time: 0.500, data_time: 0.0625 ... loss: ...
    Epoch [1][50/7330] lr: ...
    Epoch(train)  [1][ 50/7330] lr: ...

Figures are of rank 0, and means over the iterations since the line before; `time` includes
`data_time`. No throughput and no batch size are printed, but the configuration at the beginning has
the batch of a card. Evaluation and checkpoints are included in the next line, as data time or time.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?:Iter|Epoch) ?(?:\(train\))?\s{0,4}(?:\[ *(\d{1,9})\])?\[ *(\d{1,12})/ *(\d{1,12})\]"
    r"\s{1,9}(?:base_)?lr: .{0,160}?(?<![\w.])time: [\d.]"
)
_VALIDATION = re.compile(r"(?:Iter|Epoch) ?\(val\)")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step, epoch = as_count(match[2]), as_count(match[1])
        if step is None:
            return
        if epoch is None:
            found.add_facts(last_step=as_count(match[3]))
        found.add_record(
            line,
            step,
            epoch,
            time_s=find_time(text),
            step_s=number_after(text, "time:"),
            data_s=number_after(text, "data_time:"),
            loss=number_after(text, "loss:"),
            lr=number_after(text, "lr:"),
        )
    elif "Saving checkpoint" in text or _VALIDATION.search(text):
        found.evaluation_lines.append(line.number)


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
    first_step=1,
    warm_up_records=1,
)
