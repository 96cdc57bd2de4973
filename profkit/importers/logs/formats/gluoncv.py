"""Grammar of GluonCV's detectors.

    [Epoch 0][Batch 9], LR: 3.41E-07, Speed: 49.591 samples/sec, ObjLoss=...

One batch in ten is printed. `Speed` is the batch size of all cards over the time of the printed
batch alone. Losses are means since the epoch began. Lines have no timestamp.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"\[Epoch (\d{1,9})\]\[Batch (\d{1,12})\], .{0,40}?Speed: \d")
_END = re.compile(r"\[Epoch (\d{1,9})\] Training cost: \d")
_ARGUMENTS = re.compile(r"^Namespace\(.{0,4000}?(?<!\w)batch_size=(\d{1,8}),")
_CARDS = re.compile(r"(?<!\w)gpus='(\d{1,3}(?:,\d{1,3}){0,63})'")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        throughput = number_after(text, "Speed:")
        if not throughput:
            return
        found.add_record(
            line,
            as_count(match[2]),
            as_count(match[1]),
            time_s=find_time(text),
            throughput=throughput,
            lr=number_after(text, "LR:"),
        )
    elif match := _END.search(text):
        seconds = number_after(text, "Training cost:")
        if seconds is not None:
            what = f"time of epoch {int(match[1])}"
            found.add_result(line.number, what, seconds, "s", "without validation")
    elif match := _ARGUMENTS.match(text):
        cards = _CARDS.search(text)
        world_size = cards[1].count(",") + 1 if cards else None
        found.add_facts(global_batch_size=as_count(match[1]), world_size=world_size)
    elif "[Validation]" in text:
        found.evaluation_lines.append(line.number)


GRAMMAR = Grammar(
    name="gluoncv",
    title="GluonCV",
    framework="mxnet",
    marker="Speed: ",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.STEP,
    warm_up_records=1,
)
