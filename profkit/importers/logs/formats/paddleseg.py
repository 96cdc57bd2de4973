"""Grammar of PaddleSeg.

    [TRAIN] epoch: 1, iter: 20/80000, ... batch_cost: 0.5, reader_cost: 0.06, ips: 80.0 samples/sec

Figures are of one card, because only rank 0 prints, and means over the iterations since the line
before. The first window includes start-up. Nothing is reset at an epoch, whose number is computed
from the iteration's. Evaluation is in none of the times.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
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
        found.add_facts(last_step=as_count(match[3]))
        found.add_record(
            line,
            as_count(match[2]),
            as_count(match[1]),
            time_s=find_time(text),
            step_s=number_after(text, "batch_cost:"),
            data_s=number_after(text, "reader_cost:"),
            throughput=number_after(text, "ips:"),
            loss=number_after(text, "loss:"),
            lr=number_after(text, "lr:"),
        )
    elif "[EVAL]" in text:
        found.evaluation_lines.append(line.number)
    elif match := _BATCH.match(text):
        found.add_facts(batch_size=as_count(match[1]))
    elif match := _FP16.match(text):
        is_mixed = match[1] == "true" or match[2] == "fp16"
        found.add_facts(precision="amp" if is_mixed else "fp32")


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
    restarts_each_epoch=False,
    first_step=1,
    warm_up_records=1,
    evaluates_apart=True,
)
