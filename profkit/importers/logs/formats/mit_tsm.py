"""mit-han-lab's TSM, and other descendants of PyTorch's ImageNet example: `Epoch: [46][1820/1832], ... Time 0.333 (0.332)`.

The figures before the brackets are of the printed step alone, those in them are means since the
epoch began, its slow first step too. Rank 0, one card. No batch size is printed; the number of
videos over the number of iterations tells that of all cards.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Record, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.times import find_time

_VALUE = r"(\d{1,12}(?:\.\d{0,12})?) \("
_RECORD = re.compile(
    rf"Epoch: \[(\d{{1,9}})\]\[ *(\d{{1,12}})/(\d{{1,12}})\].{{0,60}}?\sTime\s{{1,9}}{_VALUE}"
)
_DATA = re.compile(rf"\sData\s{{1,9}}{_VALUE}")
_VIDEOS = re.compile(r"^video number: ?(\d{1,12})$")
_LOSS = re.compile(rf"\sLoss\s{{1,9}}{_VALUE}")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[2])
        if step is not None:
            found.tell(global_batch_size=_batch(found.memory.get("videos"), as_count(match[3])))
            found.add(
                Record(
                    line.number,
                    step,
                    as_count(match[1]),
                    find_time(text),
                    as_number(match[4]),
                    _value(_DATA, text),
                    None,
                    _value(_LOSS, text),
                    number_after(text, "lr:"),
                )
            )
    elif text.startswith(("Test: [", "Testing Results")):
        found.evaluations.append(line.number)
    elif match := _VIDEOS.match(text):
        found.memory.setdefault("videos", as_count(match[1]))


def _batch(videos: int | None, iterations: int | None) -> int | None:
    """The one batch size that makes this many iterations of this many videos, the last batch dropped or partial; else nothing."""
    if not videos or not iterations or iterations > videos:
        return None
    near = videos // iterations
    sizes = [
        size
        for size in range(max(1, near - 1), near + 3)
        if iterations in {videos // size, -(-videos // size)}
    ]
    return sizes[0] if len(sizes) == 1 else None


def _value(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return as_number(match[1]) if match else None


GRAMMAR = Grammar(
    name="mit_tsm",
    title="mit-han-lab TSM, PyTorch's ImageNet example",
    framework="pytorch",
    marker="Epoch: [",
    pattern=_RECORD,
    read=read,
    scope=Scope.CARD,
    unit="samples",
    times=Mean.STEP,
    warm_up_records=1,
)
