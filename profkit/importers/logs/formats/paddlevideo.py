"""Grammar of PaddleVideo.

    epoch:[  1/50 ] train step:20 loss: ... elapse: 0.225 reader: 0.000s ips: 71.2

One step in 20 is printed. Figures are of one card. Step 0 of an epoch includes start-up. The line
that ends an epoch has the means over all of its steps. Timestamps have no year.
"""

from __future__ import annotations

import re
import statistics

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import EpochMean, Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"epoch:\[\s{0,9}(\d{1,9})/(\d{1,9})\s{0,9}\]\s{1,9}train step:(\d{1,12})\s{0,20}"
    r".{0,300}?elapse:"
)
_END = re.compile(r"END epoch:(\d{1,9})\s{1,9}(train|val)\s")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        text = text[match.start() :]
        step_s = number_after(text, "elapse:")
        if step_s is None:
            return
        found.add_record(
            line,
            as_count(match[3]),
            as_count(match[1]),
            time_s=find_time(line.text),
            step_s=step_s,
            data_s=number_after(text, "reader:"),
            throughput=number_after(text, "ips:"),
            loss=number_after(text, "loss:"),
            lr=number_after(text, "lr:"),
        )
    elif match := _END.search(text):
        read_epoch_end(line, match, found)
    elif "val step:" in text:
        found.evaluation_lines.append(line.number)


def read_epoch_end(line: Line, match: re.Match[str], found: Found) -> None:
    found.evaluation_lines.append(line.number)
    epoch, throughput = as_count(match[1]), number_after(line.text, "ips:")
    if match[2] != "train" or epoch is None:
        return
    step_s, data_s = number_after(line.text, "elapse_avg:"), number_after(line.text, "reader_avg:")
    found.epochs.append(EpochMean(line.number, epoch, step_s, data_s, throughput))
    if throughput is not None:
        means = []
        for each in found.epochs:
            if each.throughput is not None:
                means.append(each.throughput)
        how = f"of one card; mean of {len(means)} epochs' means that the log states, start-up too"
        found.add_result(line.number, "throughput", statistics.fmean(means), "samples/s", how)


GRAMMAR = Grammar(
    name="paddlevideo",
    title="PaddleVideo",
    framework="paddle",
    marker="train step:",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="samples",
    times=Mean.STEP,
    warm_up_records=1,
)
