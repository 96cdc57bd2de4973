"""Grammar of NVIDIA's Mask R-CNN in TensorFlow.

    [MaskRCNN] INFO    : timestamp: 1609200000.123
    [MaskRCNN] INFO    : iteration: 100
    [MaskRCNN] INFO    : throughput: 35.2 samples/sec

Figures are of all cards. The first throughputs are of single steps, later ones a running average.
So the step times are those between the timestamps, and the tool's average is kept as a stated
result. Compilation extends into the second record.
"""

from __future__ import annotations

import dataclasses
import re

from profkit.importers.logs.dllogger import read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
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
        step = found.memory.pop("iteration", None)
        if step is None:
            return
        time_s = found.memory.pop("time_s", None)
        throughput = number_after(text, "throughput:")
        found.add_record(line, step, time_s=time_s, throughput=throughput)
    elif ": Total loss:" in text and found.records:
        loss = number_after(text, "Total loss:")
        found.records[-1] = dataclasses.replace(found.records[-1], loss=loss)
    elif "horovodrun" in text or "mask_rcnn_main" in text:
        read_command(text, found)
    else:
        how = "the tool's running average"
        read_result(line, found, "Average throughput:", "throughput", "samples/s", how)


def read_command(text: str, found: Found) -> None:
    """Take the options of the command that started the training."""
    batch, steps = _BATCH.search(text), _STEPS.search(text)
    found.add_facts(
        batch_size=as_count(batch[1]) if batch else None,
        last_step=as_count(steps[1]) if steps else None,
    )
    found.add_facts(precision="amp" if " --amp" in text else "fp32")


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
    restarts_each_epoch=False,
    first_step=1,
    timed_by_clock=True,
    warm_up_records=2,
)
