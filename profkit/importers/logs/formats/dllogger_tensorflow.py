"""Grammar of NVIDIA's TensorFlow ConvNets.

    DLL ... - (0, 210) total_ips : 3284.80
    :::NVLOGv0.2.3 resnet ... total_ips: 1166.48

The throughput is of all cards, printed after 200 warm-up steps. The result at the end is the
arithmetic mean of the throughputs. No line has the wait for data. The second form, of 2021, has the
step in the line before.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_parameters, read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"DLL .{1,30} - \((\d{1,9}), (\d{1,12})\) total_ips : |:::NVLOG.{1,80}\) total_ips: "
)
_ITERATION = re.compile(r":::NVLOG.{1,80}\) iteration: (\d{1,12})")
_BATCH = re.compile(r":::NVLOG.{1,120}(?<!\w)batch_size: (\d{1,8})|--batch_size[ =](\d{1,8})")
_HOW = "arithmetic mean over the steps behind the warm-up"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[2]) if match[2] else found.memory.get("iteration")
        throughput = number_after(text, "total_ips :") or number_after(text, "total_ips:")
        if throughput is not None:
            time_s = find_time(text[match.start() :])
            found.add_record(line, step, as_count(match[1]), time_s=time_s, throughput=throughput)
    elif match := _ITERATION.search(text):
        found.memory["iteration"] = as_count(match[1])
    elif "batch_size" in text and (match := _BATCH.search(text)):
        found.add_facts(batch_size=as_count(match[1] or match[2]))
    else:
        read_result(line, found, "() train_throughput :", "throughput", "images/s", _HOW)
        read_result(line, found, "Average total_ips:", "throughput", "images/s", _HOW)
        read_parameters(line, found, "batch_size")


GRAMMAR = Grammar(
    name="dllogger_tensorflow",
    title="NVIDIA TensorFlow ConvNets (DLLogger, NVLOG)",
    framework="tensorflow",
    marker="total_ips",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.STEP,
    restarts_each_epoch=False,
)
