"""Grammar of PSENet.

    (3/125) LR: 0.001000 | Batch: 0.712s | ... | Loss: 0.951 | ... | ips: 11.52300

`ips` is of all cards, because one process drives them, over the two iterations since the line
before. `Batch` and `Loss` are means since the epoch began. The mean of the loss is undone. The mean
batch time serves only to find the batch size: its three digits are too few to be undone. PSENet
trains in fp32 whatever its command or the file's name says, and no loss of it exceeds 1.
"""

from __future__ import annotations

import re
from collections import Counter

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"\((\d{1,12})/(\d{1,12})\) LR: [\d.e-]{1,20} \| Batch: .{1,120}?\| Loss: .{1,300}?ips: "
)
LARGEST_LOSS = 1.0
"""The loss is 0.7 and 0.3 of two dice losses, each at most 1."""
_ROUNDING = 1e-3
"""The mean loss has three digits; undoing it multiplies their error by the steps."""
_EPOCH = re.compile(r"^Epoch: \[(\d{1,9}) \| (\d{1,9})\]")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _EPOCH.search(text):
        found.memory["epoch"] = as_count(match[1])
    elif match := _RECORD.search(text):
        step, throughput = as_count(match[1]), number_after(text, "ips:")
        mean_s = number_after(text, "Batch:")
        if not step or not throughput or not mean_s:
            return
        found.add_facts(precision="fp32")
        loss = undo_loss(step, number_after(text, "Loss:"), found)
        if loss is not None and loss > LARGEST_LOSS + _ROUNDING * step:
            found.warn("a loss above 1, which this model's loss cannot have", line.number)
        found.add_record(
            line,
            step,
            find_epoch(step, found),
            time_s=find_time(text),
            throughput=throughput,
            loss=loss,
            lr=number_after(text, "LR:"),
            samples=find_batch(throughput * mean_s, found),
        )


def find_epoch(step: int, found: Found) -> int:
    """Return the epoch of its heading; without headings, count where steps begin again."""
    if found.memory.get("epoch") is not None:
        return int(found.memory["epoch"])
    if not found.records:
        return 0
    last = found.records[-1]
    return (last.epoch or 0) + (step <= last.step)


def undo_loss(step: int, mean: float | None, found: Found) -> float | None:
    """Return the mean loss since the line before, from means since the epoch began."""
    if mean is None:
        return None
    before: int = found.memory.get("loss_at", 0)
    last: float = found.memory.get("loss", 0.0)
    if before >= step:
        before, last = 0, 0.0
    found.memory.update(loss_at=step, loss=mean)
    return (mean * step - last * before) / (step - before)


def find_batch(product: float, found: Found) -> float:
    """Return the batch size that most lines agree on; a line alone is inexact."""
    products: Counter[int] = found.memory.setdefault("products", Counter())
    products[max(1, round(product))] += 1
    return float(products.most_common(1)[0][0])


GRAMMAR = Grammar(
    name="psenet",
    title="PSENet",
    framework="pytorch",
    marker="| Batch: ",
    pattern=_RECORD,
    read=read,
    scope=Scope.ALL,
    unit="images",
    times=Mean.WINDOW,
    first_step=1,
    warm_up_records=1,
)
