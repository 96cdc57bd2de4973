"""PaddleSeg: `[TRAIN] epoch: 1, iter: 20/80000, ...`, means over the iterations since the line before.

Rank 0 alone prints, for one card. The first window holds start-up, and nothing is reset at an
epoch, whose number is computed from the iteration's. Evaluation is in none of the times.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"\[TRAIN\] (?:epoch: ?(\d{1,9}), )?iter: ?(\d{1,12})/(\d{1,12}), .{0,300}?batch_cost:"
)
_BATCH = re.compile(r"^batch_size: (\d{1,8})$")
_FP16 = re.compile(r"^fp16: (true|false)|precision: '?(fp16|fp32)")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[2])
        found.tell(last_step=as_count(match[3]))
        if step is not None:
            found.add(
                Record(
                    line.number,
                    step,
                    as_count(match[1]),
                    find_time(text),
                    number_after(text, "batch_cost:"),
                    number_after(text, "reader_cost:"),
                    number_after(text, "ips:"),
                    number_after(text, "loss:"),
                    number_after(text, "lr:"),
                )
            )
    elif "[EVAL]" in text:
        found.evaluations.append(line.number)
    elif match := _BATCH.match(text):
        found.tell(batch_size=as_count(match[1]))
    elif match := _FP16.match(text):
        found.tell(precision="amp" if match[1] == "true" or match[2] == "fp16" else "fp32")


GRAMMAR = Grammar(
    name="paddleseg",
    title="PaddleSeg",
    framework="paddle",
    marker="[TRAIN]",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="samples",
    times=Mean.WINDOW,
    restarts=False,
    first=1,
    warm_up_records=1,
)
