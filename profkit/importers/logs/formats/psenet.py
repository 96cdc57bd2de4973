"""PSENet's print: `(3/125) LR: 0.001000 | Batch: 0.712s | ... | Loss: 0.951 | ... | ips: 11.52300`.

`ips` is of all cards (one process drives them), over the two iterations since the line before.
`Batch` and `Loss` are means since the epoch began: the loss is undone, and the batch time serves to
find the batch size alone, because its three digits are too few to be undone.
"""

from __future__ import annotations

import re
from collections import Counter

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, number_after
from profkit.importers.logs.times import find_time

_RECORD = re.compile(
    r"\((\d{1,12})/(\d{1,12})\) LR: [\d.e-]{1,20} \| Batch: .{1,120}?\| Loss: .{1,300}?ips: "
)
_EPOCH = re.compile(r"^Epoch: \[(\d{1,9}) \| (\d{1,9})\]")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _EPOCH.search(text):
        found.memory["epoch"] = as_count(match[1])
    elif match := _RECORD.search(text):
        step, throughput, mean_s = (
            as_count(match[1]),
            number_after(text, "ips:"),
            number_after(text, "Batch:"),
        )
        if step and throughput and mean_s:
            loss, lr = (
                _undo_loss(step, number_after(text, "Loss:"), found),
                number_after(text, "LR:"),
            )
            epoch, batch = _epoch(step, found), _find_batch(throughput * mean_s, found)
            found.add(
                Record(
                    line.number,
                    step,
                    epoch,
                    find_time(text),
                    throughput=throughput,
                    loss=loss,
                    lr=lr,
                    samples=batch,
                )
            )


def _find_batch(product: float, found: Found) -> float:
    """The batch size that most lines agree on: throughput times mean time, which are not about the same steps."""
    products: Counter[int] = found.memory.setdefault("products", Counter())
    products[max(1, round(product))] += 1
    return float(products.most_common(1)[0][0])


def _epoch(step: int, found: Found) -> int:
    """The epoch by its heading, else counted where steps begin anew."""
    if found.memory.get("epoch") is not None:
        return int(found.memory["epoch"])
    last = found.records[-1] if found.records else None
    return (last.epoch or 0) + (step <= last.step) if last else 0


def _undo_loss(step: int, mean: float | None, found: Found) -> float | None:
    if mean is None:
        return None
    before: int = found.memory.get("loss_at", 0)
    last: float = found.memory.get("loss", 0.0)
    if before >= step:
        before, last = 0, 0.0
    found.memory.update(loss_at=step, loss=mean)
    return (mean * step - last * before) / (step - before)


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
    first=1,
    warm_up_records=1,
)
