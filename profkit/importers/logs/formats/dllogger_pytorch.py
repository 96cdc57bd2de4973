"""NVIDIA's PyTorch ConvNets: `DLL ... - Epoch: 0 Iteration: 2  train.loss : 5.7 ... train.total_ips : 2829.87 img/s`.

Of all cards: the world size times rank 0's batch over rank 0's time of this one iteration, with the
device synchronised inside it. A partial last batch is divided as if it were whole, so it looks
slow. `Summary` is the arithmetic mean of the throughputs of all iterations, the first too;
`compute_ips` leaves out the wait for data.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_parameters, take_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"DLL .{1,30} - Epoch: (\d{1,9}) Iteration: (\d{1,12})\s{1,4}train\.loss : .{0,120}?train\.total_ips : "
)
_ITERATIONS = re.compile(r"(?<![\w.])prof : (\d{1,9})")
MEAN = "arithmetic mean over all iterations, the first too"


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        _read_record(line, text[match.start() :], match, found)
    elif "Summary:" in text:
        take_result(line, found, "train.total_ips :", "throughput", "images/s", MEAN)
        take_result(
            line, found, "train.compute_ips :", "throughput without data time", "images/s", MEAN
        )
        take_result(line, found, "train.data_time :", "data time", "s", MEAN)
    elif "Validation Iteration" in text or "SAVING" in text:
        found.evaluations.append(line.number)
    else:
        read_parameters(line, found, "batch_size")


def _read_record(line: Line, text: str, match: re.Match[str], found: Found) -> None:
    step, throughput = as_count(match[2]), number_after(text, "train.total_ips :")
    if step is None or throughput is None:
        return
    found.add(
        Record(
            line.number,
            step,
            as_count(match[1]),
            find_time(text),
            None,
            None,
            throughput,
            number_after(text, "train.loss :"),
            number_after(text, "train.lr :"),
        )
    )


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
    first=1,
    warm_up_records=10,
)
