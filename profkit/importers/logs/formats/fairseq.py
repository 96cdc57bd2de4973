"""NVIDIA's Transformer on fairseq: `Transformer | epoch 0 | step 980 |avg loss 7.534 |avg tokens 69902.800 |tokens/s 168584.110 |walltime 425.138 |`.

Of all cards, means over the steps since the line before. A step's time is its mean tokens over
tokens a second; `walltime` counts from the start and holds validation too.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"\| epoch (\d{1,9}) \| step (\d{1,12}) \|avg loss .{1,30}?\|avg tokens .{1,30}?\|tokens/s "
)


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step, tokens, rate = (
            as_count(match[2]),
            number_after(text, "avg tokens"),
            number_after(text, "tokens/s"),
        )
        if step is not None and tokens and rate:
            time_s = find_time(text) or number_after(text, "walltime")
            found.add(
                Record(
                    line.number,
                    step,
                    as_count(match[1]),
                    time_s,
                    tokens / rate,
                    None,
                    rate,
                    number_after(text, "avg loss"),
                    samples=tokens,
                )
            )
    elif "Validation loss" in text or "| Translated" in text:
        found.evaluations.append(line.number)
    elif (seconds := number_after(text, "| done training in")) is not None:
        found.result(line.number, "time of the whole training", seconds, "s", "with validation")


GRAMMAR = Grammar(
    name="fairseq",
    title="NVIDIA Transformer (fairseq)",
    framework="pytorch",
    marker="|tokens/s ",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="words",
    times=Mean.WINDOW,
    restarts=False,
    first=1,
    batch_in_name=False,
    warm_up_records=1,
)
