"""NVIDIA's Mask R-CNN in PyTorch: `DLL ... - Training Iteration: 40 ... time : 0.2190 (0.2748)  data : 0.0163 (0.0384)`.

Before the brackets are medians of the last twenty iterations, in them means over the whole run, the
slow first ones too. `train_perf_fps` is iterations times batch over the time of the whole
training, with the last checkpoint in it. The batch size is that of all cards.
"""

from __future__ import annotations

import re

from profkit.importers.logs.dllogger import take_result
from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.times import find_time

_PAIR = r" : [\d.]{1,20} \(([\d.]{1,20})\)"
_RECORD = re.compile(
    rf"Training Iteration: (\d{{1,12}})\s{{1,4}}eta : .{{1,900}}?(?<!\w)time{_PAIR}\s{{1,4}}data{_PAIR}"
)
_TOTAL = re.compile(r"Total training time: [\d:. days,]{1,40} \((\d{1,9}(?:\.\d{1,9})?) s / it\)")
_SETTING = re.compile(r"^\s{0,9}(IMS_PER_BATCH|MAX_ITER): (\d{1,12})$")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[1])
        if step is not None:
            loss, lr = number_after(text, "loss :"), number_after(text, "learning_rate :")
            found.add(
                Record(
                    line.number,
                    step,
                    None,
                    find_time(text),
                    as_number(match[2]),
                    as_number(match[3]),
                    None,
                    loss,
                    lr,
                )
            )
    elif match := _TOTAL.search(text):
        found.result(
            line.number,
            "step time",
            float(match[1]),
            "s",
            "mean over the training, with the last checkpoint",
        )
    elif match := _SETTING.match(text):
        _read_setting(match, found)
    else:
        take_result(
            line,
            found,
            "train_perf_fps :",
            "throughput",
            "images/s",
            "all iterations over the time of the training",
        )
        take_result(
            line,
            found,
            "Training perf is:",
            "throughput as echoed",
            "images/s",
            "from the rounded step time",
        )


def _read_setting(match: re.Match[str], found: Found) -> None:
    """The test's batch size is printed after the training's: the first counts."""
    if match[1] == "MAX_ITER":
        found.tell(last_step=as_count(match[2]))
    else:
        found.tell(global_batch_size=as_count(match[2]))


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
    restarts=False,
    first=1,
    held=int,
    rounding_s=5e-5,
)
