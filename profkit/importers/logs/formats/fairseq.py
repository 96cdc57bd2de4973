"""Grammar of NVIDIA's Transformer on fairseq.

    | epoch 0 | step 980 |avg loss 7.534 |avg tokens 69902.8 |tokens/s 168584.1 |walltime 425.1 |

Figures are of all cards, and means over the steps since the line before. A step's time is its mean
tokens over tokens per second. `walltime` counts from the start and includes validation.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"\| epoch (\d{1,9}) \| step (\d{1,12}) \|avg loss .{1,30}?\|avg tokens .{1,30}?\|tokens/s "
)


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        tokens, rate = number_after(text, "avg tokens"), number_after(text, "tokens/s")
        if not tokens or not rate:
            return
        found.add_record(
            line,
            as_count(match[2]),
            as_count(match[1]),
            time_s=find_time(text) or number_after(text, "walltime"),
            step_s=tokens / rate,
            throughput=rate,
            loss=number_after(text, "avg loss"),
            samples=tokens,
        )
    elif "Validation loss" in text or "| Translated" in text:
        found.evaluation_lines.append(line.number)
    elif (seconds := number_after(text, "| done training in")) is not None:
        what, how = "time of the whole training", "with validation"
        found.add_result(line.number, what, seconds, "s", how)


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
    restarts_each_epoch=False,
    first_step=1,
    batch_in_name=False,
    warm_up_records=1,
)
