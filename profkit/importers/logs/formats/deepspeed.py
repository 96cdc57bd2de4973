"""Grammar of DeepSpeed.

    [2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[5e-05
    ], mom=[(0.9, 0.95)]
    [...] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.7
    steps: 20 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601

The first line has no time, so its steps take what passed since the line before. The second one is
of all cards and begins with each forward: what a step waits for its batch is not in it. So it is
kept as a result, and no step time follows from it. The third one is the pipeline engine's, a mean
over the steps since the line before. The batch of all cards is in the printed configuration. The
`world_size` there counts data-parallel ranks; only the launcher's `dist_world_size` counts all.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.timers import forget_timers, read_timers
from profkit.importers.logs.times import find_time

_STEP = r"\[Rank \d{1,6}\] step=(\d{1,12}), skipped=(\d{1,12}), lr=\[([\d.eE+-]{0,30})"
_PIPELINE = (
    r"(?<!\w)steps?: {1,9}(\d{1,12})(?: / {0,9}\d{1,12})? loss: .{1,300}?iter time \(s\): \d"
)
_RECORD = re.compile(f"{_STEP}|{_PIPELINE}")
_SPEED = re.compile(r"(?<!\w)(?:RunningAvg)?SamplesPerSec=([\d.eE+-]{1,30})")
_SETTING = re.compile(
    r"(?:^|\s)(train_batch_size|world_size|fp16_enabled|float16_enabled|bfloat16_enabled) "
    r"\.{0,40} {1,2}(\w{1,30})$"
)
_TYPES = {"fp16_enabled": "fp16", "float16_enabled": "fp16", "bfloat16_enabled": "bf16"}


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        _read_record(line, match, found)
    elif match := _SPEED.search(text):
        speed = as_number(match[1])
        if speed:
            how = "mean so far, of all ranks, without the time between a step and the next forward"
            found.add_result(line.number, "throughput", speed, "samples/s", how)
    elif match := _SETTING.search(text):
        name, value = match[1], match[2]
        if name == "train_batch_size":
            found.add_facts(global_batch_size=as_count(value) or None)
        elif name == "world_size":  # it counts data-parallel ranks
            found.add_facts(data_ranks=as_count(value) or None)
        elif value == "True":
            found.add_facts(data_type=_TYPES[name])
    elif "DeepSpeedEngine configuration" in text:
        found.header_lines.append(line.number)
        forget_timers(found)
    elif "Saving model checkpoint" in text:
        found.evaluation_lines.append(line.number)
    else:
        read_timers(line, found)


def _read_record(line: Line, match: re.Match[str], found: Found) -> None:
    step, before = as_count(match[1] or match[4]), found.records[-1] if found.records else None
    if step is None:
        return
    if before is not None and step < before.step:
        forget_timers(found)
    if match[1]:
        lr, skipped = as_number(match[3]), as_count(match[2])
        found.add_record(line, step, time_s=find_time(line.text), lr=lr, skipped=skipped)
        return
    figures: dict[str, Any] = {
        "step_s": number_after(line.text, "iter time (s):"),
        "throughput": number_after(line.text, "samples/sec:"),
        "loss": number_after(line.text, "loss:"),
    }
    if before is not None and before.step == step and before.step_s is None:
        found.records[-1] = dataclasses.replace(before, **figures)
    else:
        found.add_record(line, step, time_s=find_time(line.text), **figures)


GRAMMAR = Grammar(
    name="deepspeed",
    title="DeepSpeed",
    framework="pytorch",
    marker="step",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="samples",
    times=Mean.WINDOW,
    restarts_each_epoch=False,
    first_step=1,
    timed_by_clock=True,
    warm_up_records=1,
    rounding_s=5e-4,
)
