"""PaddleClas, three generations: December 2020 (`elapse`), 2021 (`batch_cost`, images/sec), 2022 on (samples/sec).

Times are means since the fifth step of the epoch (the meters are reset there), of one card; losses
are of the step itself. `ips` is the step's own batch size over the mean time, so a partial last
batch spoils it: the line that ends an epoch is read for its time only.
"""

from __future__ import annotations

import re
import statistics

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"epoch:(\d{1,9})\s{1,9}train step:(\d{1,12})\s.{0,400}?(?:elapse|batch_cost):"
)
_END = re.compile(r"END epoch:(\d{1,9})\s{1,9}train\s")
_RESET_AT = 5
_SEEN = 15
_LARGEST_DIFFERENCE = 0.05


def held(step: int) -> int:
    """Steps in the mean printed at `step`: all until the reset at 5, then those from 5 on."""
    return step + 1 if step < _RESET_AT else step - _RESET_AT + 1


def read(line: Line, found: Found) -> None:
    if match := _RECORD.search(line.text):
        _read_record(line, match, found)
    elif (match := _END.search(line.text)) and (epoch := as_count(match[1])) is not None:
        _read_end(line, epoch, found)


def _read_record(line: Line, match: re.Match[str], found: Found) -> None:
    text = line.text[match.start() :]
    step = as_count(match[2])
    step_s = number_after(text, "batch_cost:") or number_after(text, "elapse:")
    throughput = number_after(text, "ips:")
    if step is None or step_s is None:
        return
    found.add(
        Record(
            line.number,
            step,
            as_count(match[1]),
            find_time(line.text),
            _sharper(step_s, throughput, line, found),
            number_after(text, "reader_cost:"),
            throughput,
            number_after(text, "loss:"),
            number_after(text, "lr:"),
            samples=_agreed(found),
        )
    )
    if any((number_after(text, name) or 0) < 0 for name in ("top1:", "top5:")):
        found.notice("an accuracy below zero: the metric is broken", line.number)


def _usual_batch(batch: int, found: Found) -> int:
    """The batch size that most of the last lines agree on: a damaged or partial one is none."""
    batches: list[int] = found.memory.setdefault("batches", [])
    batches.append(batch)
    del batches[:-_SEEN]
    return statistics.mode(batches)


def _agreed(found: Found) -> float | None:
    batches: list[int] = found.memory.get("batches", [])
    return float(statistics.mode(batches)) or None if batches else None


def _sharper(step_s: float, throughput: float | None, line: Line, found: Found) -> float:
    """The step time from the throughput, which has more digits, where both tell of the usual batch size."""
    if not throughput or throughput <= 0:
        return step_s
    batch = _usual_batch(round(throughput * step_s), found)
    rounding = 6e-4 if step_s == round(step_s, 3) else 6e-6
    if abs(batch / throughput - step_s) <= max(rounding, 1e-6 * step_s):
        return batch / throughput
    if abs(throughput * step_s / max(batch, 1) - 1) > _LARGEST_DIFFERENCE:
        found.notice(
            "a throughput that contradicts the step time beside it: of a partial batch, or damaged",
            line.number,
        )
    return step_s


def _read_end(line: Line, epoch: int, found: Found) -> None:
    throughput, step_s = number_after(line.text, "ips:"), number_after(line.text, "batch_cost:")
    if throughput is not None:
        _judge_last_batch(line, throughput, found)
        found.result(
            line.number,
            "throughput at an epoch's end",
            throughput,
            "images/s",
            f"epoch {epoch}, of one card; the last batch's size over the mean",
        )
    if step_s is not None:
        found.result(
            line.number,
            "step time at an epoch's end",
            step_s,
            "s",
            f"epoch {epoch}, mean from the fifth step on",
        )


def _judge_last_batch(line: Line, throughput: float, found: Found) -> None:
    usual = found.records[-1].throughput if found.records else None
    if usual and throughput < 0.95 * usual:
        found.notice(
            "a partial last batch, by whose size the throughput at the epoch's end is spoilt",
            line.number,
        )


GRAMMAR = Grammar(
    name="paddleclas",
    title="PaddleClas",
    framework="paddle",
    marker="train step:",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="images",
    times=Mean.EPOCH,
    held=held,
    warm_up_steps=_RESET_AT,
    rounding_s=5e-6,
)
