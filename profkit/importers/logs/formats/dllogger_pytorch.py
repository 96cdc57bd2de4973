"""Grammar of NVIDIA's PyTorch ConvNets.

    DLL ... - Epoch: 0 Iteration: 2  train.loss : 5.7 ... train.total_ips : 2829.87 img/s

The throughput is of all cards: the world size times rank 0's batch over rank 0's time of this one
iteration, with the device synchronised. A partial last batch counts as a whole one, so it looks
slow. `Summary` has the arithmetic mean of the throughputs of all iterations, also the first.
`compute_ips` excludes the wait for data, which therefore follows from the two.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_parameters, read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"DLL .{1,30} - Epoch: (\d{1,9}) Iteration: (\d{1,12})\s{1,4}train\.loss : "
    r".{0,120}?train\.total_ips : "
)
_HOW = "arithmetic mean over all iterations, the first too"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        text = text[match.start() :]
        throughput = number_after(text, "train.total_ips :")
        if throughput is None:
            return
        found.add_record(
            line,
            as_count(match[2]),
            as_count(match[1]),
            time_s=find_time(text),
            throughput=throughput,
            compute_throughput=number_after(text, "train.compute_ips :"),
            loss=number_after(text, "train.loss :"),
            lr=number_after(text, "train.lr :"),
        )
    elif "Summary:" in text:
        read_result(line, found, "train.total_ips :", "throughput", "images/s", _HOW)
        what = "throughput without data time"
        read_result(line, found, "train.compute_ips :", what, "images/s", _HOW)
        read_result(line, found, "train.data_time :", "data time", "s", _HOW)
    elif "Validation Iteration" in text or "SAVING" in text:
        found.evaluation_lines.append(line.number)
    else:
        read_parameters(line, found, "batch_size")


GRAMMAR = Grammar(
    name="dllogger_pytorch",
    title="NVIDIA PyTorch ConvNets (DLLogger)",
    framework="pytorch",
    marker="train.total_ips :",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.STEP,
    first_step=1,
    warm_up_records=10,
)
