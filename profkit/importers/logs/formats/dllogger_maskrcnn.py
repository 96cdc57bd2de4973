"""Grammar of NVIDIA's Mask R-CNN in PyTorch.

    DLL ... - Training Iteration: 40 ... time : 0.2190 (0.2748)  data : 0.0163 (0.0384)

The figures before the brackets are medians of the last twenty iterations. Those in brackets are
means over the whole run, with the slow first iterations. `train_perf_fps` is iterations times batch
over the time of the whole training, with the last checkpoint. The batch size is that of all cards.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import read_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.times import find_time

_PAIR = r" : [\d.]{1,20} \(([\d.]{1,20})\)"
_RECORD = re.compile(
    rf"Training Iteration: (\d{{1,12}})\s{{1,4}}eta : "
    rf".{{1,900}}?(?<!\w)time{_PAIR}\s{{1,4}}data{_PAIR}"
)
_TOTAL = re.compile(r"Total training time: [\d:. days,]{1,40} \((\d{1,9}(?:\.\d{1,9})?) s / it\)")
_SETTING = re.compile(r"^\s{0,9}(IMS_PER_BATCH|MAX_ITER): (\d{1,12})$")
_FACT_OF_SETTING = {"IMS_PER_BATCH": "global_batch_size", "MAX_ITER": "last_step"}
"""The batch size of the test is printed after that of the training: the first counts."""


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        found.add_record(
            line,
            as_count(match[1]),
            time_s=find_time(text),
            step_s=as_number(match[2]),
            data_s=as_number(match[3]),
            loss=number_after(text, "loss :"),
            lr=number_after(text, "learning_rate :"),
        )
    elif match := _TOTAL.search(text):
        how = "mean over the training, with the last checkpoint"
        found.add_result(line.number, "step time", float(match[1]), "s", how)
    elif match := _SETTING.match(text):
        found.add_facts(**{_FACT_OF_SETTING[match[1]]: as_count(match[2])})
    else:
        how = "all iterations over the time of the training"
        read_result(line, found, "train_perf_fps :", "throughput", "images/s", how)
        what, how = "throughput as echoed", "from the rounded step time"
        read_result(line, found, "Training perf is:", what, "images/s", how)


GRAMMAR = Grammar(
    name="dllogger_maskrcnn",
    title="NVIDIA Mask R-CNN in PyTorch (DLLogger)",
    framework="pytorch",
    marker="Training Iteration:",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.RUN,
    restarts_each_epoch=False,
    first_step=1,
    steps_in_mean=int,
    rounding_s=5e-5,
)
