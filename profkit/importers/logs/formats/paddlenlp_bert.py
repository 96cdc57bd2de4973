"""Grammar of PaddleNLP's language models.

    total step: 40, epoch: 0, batch: 39, loss: ..., ips: 697.8 sequences/sec
    global step 20, epoch: 0, batch: 19, loss: ..., speed: 4.28 step/s, ips: 137.08 sequences/s

Figures are of one card, and means over the steps since the line before. Some versions spell it
`tobal step`. The second form is the oldest and has no reader time. From 2022 on `avg_batch_cost`
excludes the wait for data, before it includes it. The throughput is over both in all versions, so
the step time is computed from it.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?:to[bt]al|global) step:? (\d{1,12}), epoch: (\d{1,9}), batch: (\d{1,12}), "
    r"loss: .{0,300}?ips ?:"
)
_MAX_STEPS = re.compile(r"(?:--max_steps |'--max_steps', '|max_steps=)(\d{1,12})")
_BATCH = re.compile(r"(?:--batch_size |'--batch_size', '|(?<!\w)batch_size=)(\d{1,8})")
_MIXED = re.compile(r"(?:--use_amp |'--use_amp', '|use_amp=)(True|true|False|false)")
_TOLERANCE = 0.01
"""The time that a throughput is over may differ from the printed one by this share."""


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        read_record(line, match, found)
        return
    if "max_steps" in text and (match := _MAX_STEPS.search(text)):
        found.add_facts(last_step=as_count(match[1]))
    if "batch_size" in text and (match := _BATCH.search(text)):
        found.add_facts(batch_size=as_count(match[1]))
    if "use_amp" in text and (match := _MIXED.search(text)):
        found.add_facts(precision="amp" if match[1].lower() == "true" else "fp32")


def read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text = line.text
    samples, speed = number_after(text, "avg_samples:"), number_after(text, "speed:")
    step_s, data_s = number_after(text, "avg_batch_cost:"), number_after(text, "avg_reader_cost:")
    throughput = number_after(text, "ips:") or number_after(text, "ips :")
    if samples is None and speed and throughput:
        samples = float(round(throughput / speed))
    if samples and throughput and step_s is not None:
        step_s = choose_step_time(samples / throughput, step_s, data_s or 0)
    found.add_record(
        line,
        as_count(match[1]),
        as_count(match[2]),
        time_s=find_time(text),
        step_s=step_s,
        data_s=data_s,
        throughput=throughput,
        loss=number_after(text, "loss:"),
        samples=samples,
    )


def choose_step_time(computed_s: float, batch_s: float, data_s: float) -> float:
    """Return the time that the throughput is over, unless a digit of it is damaged.

    It must be the time of the batch, with or without the wait for data.
    """
    shortest, longest = (1 - _TOLERANCE) * batch_s, (1 + _TOLERANCE) * (batch_s + data_s)
    if shortest <= computed_s <= longest:
        return computed_s
    return batch_s


GRAMMAR = Grammar(
    name="paddlenlp_bert",
    title="PaddleNLP language models",
    framework="paddle",
    marker=" step",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="sequences",
    times=Mean.WINDOW,
    restarts_each_epoch=False,
    first_step=1,
    warm_up_records=1,
)
