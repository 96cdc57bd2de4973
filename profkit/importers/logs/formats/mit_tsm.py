"""Grammar of mit-han-lab's TSM and other descendants of PyTorch's ImageNet example.

    Epoch: [46][1820/1832], ... Time 0.333 (0.332)

The figures before the brackets are of the printed step alone. Those in brackets are means since the
epoch began, with its slow first step. They are of rank 0, that is of one card. No batch size is
printed, but the number of videos over the number of iterations is that of all cards.
"""

from __future__ import annotations

import re

from profkit.importers.logs.grammar import Found, Grammar
from profkit.importers.logs.parsed import Mean, Scope
from profkit.importers.logs.text import Line, as_count, as_number, number_after
from profkit.importers.logs.times import find_time

_VALUE = r"(\d{1,12}(?:\.\d{0,12})?) \("
_RECORD = re.compile(
    rf"Epoch: \[(\d{{1,9}})\]\[ *(\d{{1,12}})/(\d{{1,12}})\].{{0,60}}?\sTime\s{{1,9}}{_VALUE}"
)
_DATA = re.compile(rf"\sData\s{{1,9}}{_VALUE}")
_LOSS = re.compile(rf"\sLoss\s{{1,9}}{_VALUE}")
_VIDEOS = re.compile(r"^video number: ?(\d{1,12})$")


def read(line: Line, found: Found) -> None:
    text = line.text
    if match := _RECORD.search(text):
        step = as_count(match[2])
        if step is None:
            return
        batch = find_batch(found.memory.get("videos"), as_count(match[3]))
        found.add_facts(global_batch_size=batch)
        found.add_record(
            line,
            step,
            as_count(match[1]),
            time_s=find_time(text),
            step_s=as_number(match[4]),
            data_s=value_of(_DATA, text),
            loss=value_of(_LOSS, text),
            lr=number_after(text, "lr:"),
        )
    elif text.startswith(("Test: [", "Testing Results")):
        found.evaluation_lines.append(line.number)
    elif match := _VIDEOS.match(text):
        found.memory.setdefault("videos", as_count(match[1]))


def find_batch(videos: int | None, iterations: int | None) -> int | None:
    """Return the one batch size that makes these iterations of these videos, or null."""
    if not videos or not iterations or iterations > videos:
        return None
    near = videos // iterations
    sizes = []
    for size in range(max(1, near - 1), near + 3):
        if iterations in {videos // size, -(-videos // size)}:
            sizes.append(size)
    if len(sizes) != 1:
        return None
    return sizes[0]


def value_of(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if match:
        return as_number(match[1])
    return None


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
