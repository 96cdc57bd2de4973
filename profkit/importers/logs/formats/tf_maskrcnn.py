"""NVIDIA's Mask R-CNN in TensorFlow: `[MaskRCNN] INFO    : throughput: 35.2 samples/sec`, with iteration and timestamp in lines before.

Of all cards. The first figures are of single steps, later ones a running average, so the times are
those between the timestamps; what the tool averages is kept as it states it. Compilation reaches into
the second line.
"""

from __future__ import annotations

import dataclasses
import re

from profkit.importers.logs.dllogger import take_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(r"\[MaskRCNN\] INFO\s{1,8}: throughput: \d")
_ITERATION = re.compile(r"\[MaskRCNN\] INFO\s{1,8}: iteration: (\d{1,12})")
_BATCH = re.compile(r"--train_batch_size[ =](\d{1,8})")
_STEPS = re.compile(r"--total_steps[ =](\d{1,12})")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _ITERATION.search(text):
        found.memory["iteration"] = as_count(match[1])
    elif "timestamp: " in text:
        found.memory["time_s"] = find_time(text)
    elif _RECORD.search(text):
        _read_record(line, found)
    elif ": Total loss:" in text and found.records:
        found.records[-1] = dataclasses.replace(
            found.records[-1], loss=number_after(text, "Total loss:")
        )
    elif "horovodrun" in text or "mask_rcnn_main" in text:
        _read_command(text, found)
    else:
        take_result(
            line,
            found,
            "Average throughput:",
            "throughput",
            "samples/s",
            "the tool's running average",
        )


def _read_record(line: Line, found: Found) -> None:
    step = found.memory.pop("iteration", None)
    if step is not None:
        time_s = found.memory.pop("time_s", None)
        found.add(
            Record(
                line.number, step, None, time_s, throughput=number_after(line.text, "throughput:")
            )
        )


def _read_command(text: str, found: Found) -> None:
    batch, steps = _BATCH.search(text), _STEPS.search(text)
    found.tell(
        batch_size=as_count(batch[1]) if batch else None,
        last_step=as_count(steps[1]) if steps else None,
    )
    found.tell(precision="amp" if " --amp" in text else "fp32")


GRAMMAR = Grammar(
    name="tf_maskrcnn",
    title="NVIDIA Mask R-CNN in TensorFlow",
    framework="tensorflow",
    marker="[MaskRCNN]",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    restarts=False,
    first=1,
    timed=True,
    warm_up_records=2,
)
