"""PaddleNLP's language models: `total step: 40, epoch: 0, batch: 39, loss: ..., ips: 697.8 sequences/sec`.

Means over the steps since the line before, of one card. Older versions spell it `tobal step`; the
oldest say `global step 20, ..., speed: 4.28 step/s, ips: 137.08 sequences/s` and tell no reader.
From 2022 on `avg_batch_cost` leaves out the wait for data, before it holds it; the throughput is
over both in all of them, so the step time is taken from it.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?:to[bt]al|global) step:? (\d{1,12}), epoch: (\d{1,9}), batch: (\d{1,12}), loss: .{0,300}?ips ?:"
)
_MOST_STEPS = re.compile(r"(?:--max_steps |'--max_steps', '|max_steps=)(\d{1,12})")
_BATCH = re.compile(r"(?:--batch_size |'--batch_size', '|(?<!\w)batch_size=)(\d{1,8})")
_MIXED = re.compile(r"(?:--use_amp |'--use_amp', '|use_amp=)(True|true|False|false)")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        _read_record(line, text, match, found)
    else:
        _read_arguments(text, found)


def _read_record(line: Line, text: str, match: re.Match[str], found: Found) -> None:
    step = as_count(match[1])
    if step is None:
        return
    samples, speed, data_s = (
        number_after(text, "avg_samples:"),
        number_after(text, "speed:"),
        number_after(text, "avg_reader_cost:"),
    )
    throughput = number_after(text, "ips:") or number_after(text, "ips :")
    if samples is None and speed and throughput:
        samples = float(round(throughput / speed))
    found.add(
        Record(
            line.number,
            step,
            as_count(match[2]),
            find_time(text),
            _step_time(samples, throughput, number_after(text, "avg_batch_cost:"), data_s),
            data_s,
            throughput,
            number_after(text, "loss:"),
            samples=samples,
        )
    )


def _step_time(
    samples: float | None, throughput: float | None, batch_s: float | None, data_s: float | None
) -> float | None:
    """The time that the throughput is over, where it is the batch's with or without the wait; else a digit is damaged."""
    if not samples or not throughput or batch_s is None:
        return batch_s
    over = samples / throughput
    return over if 0.99 * batch_s <= over <= 1.01 * (batch_s + (data_s or 0)) else batch_s


def _read_arguments(text: str, found: Found) -> None:
    if "max_steps" in text and (match := _MOST_STEPS.search(text)):
        found.tell(last_step=as_count(match[1]))
    if "batch_size" in text and (match := _BATCH.search(text)):
        found.tell(batch_size=as_count(match[1]))
    if "use_amp" in text and (match := _MIXED.search(text)):
        found.tell(precision="amp" if match[1].lower() == "true" else "fp32")


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
    restarts=False,
    first=1,
    warm_up_records=1,
)
