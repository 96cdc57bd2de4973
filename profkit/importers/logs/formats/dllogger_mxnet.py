"""NVIDIA's MXNet ConvNets: `Epoch[2] Batch [420-439] Speed: 1392.01 samples/sec`, later `DLL ... - Epoch: 0 Iteration: 39 ... train.ips : 7094.2`.

Of all cards, means over the batches since the line before. The batch size among the parameters is
that of all cards. One file may hold runs with one and with eight of them. The tables at the end
have their unit in the caption alone; `nan` in one is a failure of the reporter, not of the run.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import (
    LARGEST_BATCH,
    number_in_table,
    read_parameters,
    take_result,
)
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"Epoch\[(\d{1,9})\] Batch \[\d{1,12}-(\d{1,12})\]\s{1,4}Speed: |DLL .{1,30} - Epoch: (\d{1,9}) Iteration: (\d{1,12})\s{1,4}train\.loss : .{0,60}?train\.ips : "
)
_START = "Start with arguments Namespace("
_TABLES = {"train.total_ips": "images/s", "train.ips": "images/s", "train.latency_avg": "s"}


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[2] or match[4])
        throughput = number_after(text, "Speed:") if match[2] else number_after(text, "train.ips :")
        if step is not None and throughput is not None:
            loss, lr = (
                number_after(text, "train.loss :"),
                number_after(text, "train.lr :") or number_after(text, "LR:"),
            )
            found.add(
                Record(
                    line.number,
                    step,
                    as_count(match[1] or match[3]),
                    find_time(text),
                    None,
                    None,
                    throughput,
                    loss,
                    lr,
                )
            )
    elif _START in text:
        size = number_after(text.partition(_START)[2], "batch_size=")
        found.headers.append(line.number)
        found.tell(global_batch_size=int(size) if size and size <= LARGEST_BATCH else None)
    elif "Summary:" in text:
        take_result(
            line,
            found,
            "train.ips :",
            "throughput of the last epoch",
            "images/s",
            "arithmetic mean over its lines",
        )
    else:
        _read_table(line, found)
        read_parameters(line, found, "global_batch_size")


def _read_table(line: Line, found: Found) -> None:
    """A caption, a head, and a row with the figure."""
    text = line.text.strip()
    if text in _TABLES:
        found.memory["table"] = text
        return
    caption = found.memory.get("table")
    if caption is None or "|" not in text:
        return
    value = number_in_table(text)
    if value is not None:
        what = "step time in the table" if _TABLES[caption] == "s" else "throughput in the table"
        found.result(
            line.number,
            what,
            value,
            _TABLES[caption],
            f"{caption}: mean over the epochs behind the warm-up",
        )
    elif text.split("|")[0].strip().isdigit():
        found.notice(
            f"the table of {caption} has no number: the reporter failed, the run did not",
            line.number,
        )
    else:
        return
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
