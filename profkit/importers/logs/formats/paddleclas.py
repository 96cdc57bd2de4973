"""Grammar of PaddleClas.

    epoch:0   train step:20  loss: ... elapse: 0.300s ips: 853.3 images/sec
    [Train][Epoch 1/120][Iter: 20/5005]lr: ... batch_cost: 0.3s, reader_cost: 0.1, ips: 853

Times are of one card, and means since the fifth step of the epoch, where meters are reset. Losses
are of the step. `ips` is its batch size over the mean time: a partial last batch distorts it.
"""

from __future__ import annotations

import re
import statistics

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"(?:epoch:(\d{1,9})\s{1,9},? ?train step:(\d{1,12})\s"
    r"|\[Train\]\[Epoch (\d{1,9})/\d{1,9}\]\[Iter: (\d{1,12})/\d{1,12}\])"
    r".{0,400}?(?:elapse|batch_cost):"
)
_END = re.compile(r"END epoch:(\d{1,9})\s{1,9}train\s")
_RESET_AT = 5
_BATCHES_COMPARED = 15
"""The usual batch size is that of most of this many lines."""
_MAX_DIFFERENCE = 0.05
"""Throughput times step time may differ from the usual batch size by this share."""
_PARTIAL = 0.95
"""A throughput below this share of the one before is that of a partial batch."""


def read(line: Line, found: Found) -> None:
    if match := _RECORD.search(line.text):
        read_record(line, match, found)
    elif "[Eval]" in line.text:
        found.evaluation_lines.append(line.number)
    elif (match := _END.search(line.text)) and (epoch := as_count(match[1])) is not None:
        read_epoch_end(line, epoch, found)


def read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text, step = line.text[match.start() :], as_count(match[2] or match[4])
    step_s = number_after(text, "batch_cost:") or number_after(text, "elapse:")
    throughput = number_after(text, "ips:")
    if step is None or step_s is None:
        return
    step_s = sharpen(step_s, throughput, line, found)
    batches = found.memory.get("batches")
    found.add_record(
        line,
        step,
        as_count(match[1] or match[3]),
        time_s=find_time(line.text),
        step_s=step_s,
        data_s=number_after(text, "reader_cost:"),
        throughput=throughput,
        loss=number_after(text, "loss:"),
        lr=number_after(text, "lr:"),
        samples=float(statistics.mode(batches)) or None if batches else None,
    )
    if (number_after(text, "top1:") or 0) < 0 or (number_after(text, "top5:") or 0) < 0:
        found.warn("an accuracy below zero: the metric is broken", line.number)


def sharpen(step_s: float, throughput: float | None, line: Line, found: Found) -> float:
    """Return the step time with the digits of the throughput, which has more of them.

    They are used only if both agree on the usual batch size, which is that of most lines.
    """
    if not throughput or throughput <= 0:
        return step_s
    batches: list[int] = found.memory.setdefault("batches", [])
    batches.append(round(throughput * step_s))
    del batches[:-_BATCHES_COMPARED]
    batch = statistics.mode(batches)
    rounding = 6e-4 if step_s == round(step_s, 3) else 6e-6
    if abs(batch / throughput - step_s) <= max(rounding, 1e-6 * step_s):
        return batch / throughput
    if abs(throughput * step_s / max(batch, 1) - 1) > _MAX_DIFFERENCE:
        what = "a throughput that contradicts the step time of its line: a partial batch, or damage"
        found.warn(what, line.number)
    return step_s


def read_epoch_end(line: Line, epoch: int, found: Found) -> None:
    throughput, step_s = number_after(line.text, "ips:"), number_after(line.text, "batch_cost:")
    if throughput is not None:
        usual = found.records[-1].throughput if found.records else None
        if usual and throughput < _PARTIAL * usual:
            what = "a partial last batch, which distorts the throughput at the epoch's end"
            found.warn(what, line.number)
        how = f"epoch {epoch}, of one card; the last batch's size over the mean"
        found.add_result(line.number, "throughput at an epoch's end", throughput, "images/s", how)
    if step_s is not None:
        how = f"epoch {epoch}, mean from the fifth step on"
        found.add_result(line.number, "step time at an epoch's end", step_s, "s", how)


def steps_in_mean(step: int) -> int:
    """Return the number of steps in the mean printed at `step`, since the reset or the start."""
    return step + 1 - (_RESET_AT if step >= _RESET_AT else 0)


GRAMMAR = Grammar(
    name="paddleclas",
    title="PaddleClas",
    framework="paddle",
    marker="ips:",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="images",
    times=Mean.EPOCH,
    steps_in_mean=steps_in_mean,
    warm_up_steps=_RESET_AT,
    rounding_s=5e-6,
)
