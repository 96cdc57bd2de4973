"""Grammar of NVIDIA's MXNet ConvNets.

    Epoch[2] Batch [420-439] Speed: 1392.01 samples/sec
    DLL ... - Epoch: 0 Iteration: 39  train.loss : ... train.ips : 7094.2

Figures are of all cards, and means over the batches since the line before. The batch size among the
parameters is that of all cards. One file may hold a run on one card and a run on eight. The tables
at the end have their unit in the caption only; `nan` in a table is a failure of the reporter.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import LARGEST_BATCH, read_parameters, read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"Epoch\[(\d{1,9})\] Batch \[\d{1,12}-(\d{1,12})\]\s{1,4}Speed: "
    r"|DLL .{1,30} - Epoch: (\d{1,9}) Iteration: (\d{1,12})\s{1,4}train\.loss : "
    r".{0,60}?train\.ips : "
)
_START = "Start with arguments Namespace("
_TABLES = {
    "train.total_ips": ("throughput in the table", "images/s"),
    "train.ips": ("throughput in the table", "images/s"),
    "train.latency_avg": ("step time in the table", "s"),
}


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        read_record(line, match, found)
    elif _START in text:
        size = number_after(text.partition(_START)[2], "batch_size=")
        found.header_lines.append(line.number)
        if size and size <= LARGEST_BATCH:
            found.add_facts(global_batch_size=int(size))
    elif "start with arguments Namespace(" in text:  # MXNet's own example, of one process
        found.memory["batch"] = number_after(text, "batch_size=")
    elif "Summary:" in text:
        what, how = "throughput of the run", "mean of the epochs' means, start-up too"
        read_result(line, found, "train.ips :", what, "images/s", how)
    else:
        read_table(line, found)
        read_parameters(line, found, "global_batch_size")


def read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text = line.text
    throughput = number_after(text, "Speed:" if match[2] else "train.ips :")
    if throughput is None:
        return
    time_s, batch = find_time(text), found.memory.get("batch")
    if time_s is None and batch and batch <= LARGEST_BATCH:
        found.add_facts(global_batch_size=int(batch))
    found.add_record(
        line,
        as_count(match[2] or match[4]),
        as_count(match[1] or match[3]),
        time_s=time_s,
        throughput=throughput,
        loss=number_after(text, "train.loss :"),
        lr=number_after(text, "train.lr :") or number_after(text, "LR:"),
    )


def read_table(line: Line, found: Found) -> None:
    """Read a line of a table: its caption, its head, or its row with the figure."""
    text = line.text.strip()
    if text in _TABLES:
        found.memory["table"] = text
        return
    caption = found.memory.get("table")
    if caption is None or "|" not in text:
        return
    cells = text.split("|")
    if not cells[0].strip().isdigit():
        return
    value = as_number(cells[1].strip()) if len(cells) == 3 else None
    if value is not None:
        what, unit = _TABLES[caption]
        how = f"{caption}: mean over the epochs behind the warm-up"
        found.add_result(line.number, what, value, unit, how)
    else:
        what = f"the table of {caption} has no number: the reporter failed, the run did not"
        found.warn(what, line.number)
    found.memory["table"] = None


GRAMMAR = Grammar(
    name="dllogger_mxnet",
    title="NVIDIA MXNet ConvNets",
    framework="mxnet",
    marker="Epoch",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.WINDOW,
    warm_up_records=1,
)
