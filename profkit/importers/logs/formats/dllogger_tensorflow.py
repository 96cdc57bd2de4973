"""NVIDIA's TensorFlow ConvNets: `DLL ... - (0, 210) total_ips : 3284.80`, in 2021 `:::NVLOGv0.2.3 resnet ... total_ips: 1166.48`.

Of all cards, printed after 200 warm-up steps. The result at the end is the arithmetic mean of the
throughputs. Neither data time nor, in 2021, the step stands in the line: it is in the line before.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_parameters, take_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"DLL .{1,30} - \((\d{1,9}), (\d{1,12})\) total_ips : |:::NVLOG.{1,80}\) total_ips: "
)
_ITERATION = re.compile(r":::NVLOG.{1,80}\) iteration: (\d{1,12})")
_BATCH = re.compile(r":::NVLOG.{1,120}(?<!\w)batch_size: (\d{1,8})|--batch_size[ =](\d{1,8})")
_MEAN = "arithmetic mean over the steps behind the warm-up"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        _read_record(line, match, found)
    elif match := _ITERATION.search(text):
        found.memory["iteration"] = as_count(match[1])
    elif "batch_size" in text and (match := _BATCH.search(text)):
        found.tell(batch_size=as_count(match[1] or match[2]))
    else:
        take_result(line, found, "() train_throughput :", "throughput", "images/s", _MEAN)
        take_result(line, found, "Average total_ips:", "throughput", "images/s", _MEAN)
        read_parameters(line, found, "batch_size")


def _read_record(line: Line, match: re.Match[str], found: Found) -> None:
    step = as_count(match[2]) if match[2] else found.memory.get("iteration")
    throughput = number_after(line.text, "total_ips :") or number_after(line.text, "total_ips:")
    if step is not None and throughput is not None:
        found.add(
            Record(
                line.number,
                step,
                as_count(match[1]),
                find_time(line.text[match.start() :]),
                throughput=throughput,
            )
        )


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
    restarts=False,
)
