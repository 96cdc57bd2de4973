"""Names that a hostile trace could contain, and the effect of each if shown unescaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from profkit.clock import Anchor
from profkit.trace import RankManifest, RunManifest
from profkit.trace.files import RankFiles
from profkit.trace.flag import Flag
from profkit.vocab import LOADER_WORKER, EventKind, RunState, rank_folder

INJECTIONS = {
    "script": "</title></style></script><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x=\'><img src=x onerror=alert(1)>',
    "svg": "]]></text></svg><svg onload=alert(1)>",
    "entity": "&lt;b&gt; &#x3c;script&#x3e; &amp;",
    "style": "</style><style>*{background:url(//evil.example/x)}",
    "title of a terminal": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "link of a terminal": "\x1b]8;;http://evil.example\x1b\\text\x1b]8;;\x1b\\",
    "device control": "\x1bP+q544e\x1b\\",
    "cursor": "\x1b[2J\x1b[31mred\x9b2J",
    "null and bell": "nul\x00l \x07 \x7f \x85",
    "collapsed stack": "f\nrank 0;forged 999999999\r",
    "bidi": "abc\u202egnp.exe\u2066\u200b\u2028",
    "markup of Textual": "void f[/b](int) [@click=app.quit]x[/] [[[red]",
    "markdown": (
        "| a | **b** `c` [d](http://evil.example) ![e](//evil.example/e.png) "
        "<b>f</b> @user #1 ~~g~~"
    ),
    "formula": "=cmd|' /C calc'!A0",
    "path": "../../../../tmp/escape",
    "half a pair": "\udc80\udcff",
    "long": "long name " * 400,
    "lines": "one\r\ntwo\nthree\ttab",
    "percent": "%s %n {0} {{ }} ${HOME} $(id) `id`",
}
"""By what they are after."""

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\u2028]")
"""Characters that no shown text contains: controls except line feeds, and hiding marks."""


def hostile_run(folder: Path, *, steps: int = 30) -> Path:
    """A run whose every text is hostile, written past all doors that clean."""
    texts = list(INJECTIONS.values())
    for rank in range(2):
        files = RankFiles(folder / rank_folder(rank), rank)
        RankManifest(
            rank, texts[0], 1, texts[rank], Anchor(1, 2, 3), world_size=2, framework=texts[2]
        ).write(files.folder)
        files.write("steps", _steps(steps))
        files.write("spans", _spans(texts, steps))
        files.write("collectives", _collectives(texts, steps))
        files.write("samples", _samples(texts))
        files.write("events", _events(texts))
        files.write("stacks", _stacks(texts, steps))
        files.write("frames", _frames(texts))
        files.write("stacks", _stacks(texts, steps, LOADER_WORKER))
        files.close(texts[5])
    known = dict(zip(texts, texts, strict=True))
    RunManifest(
        workload=texts[0],
        framework=texts[5],
        state=RunState.ABORTED,
        why="".join(texts),
        world_size=2,
        config=known,
        environment=known,
        flags=tuple(map(Flag, texts)),
    ).write(folder)
    return folder


def _chosen(texts: Sequence[str], count: int) -> list[str]:
    return [texts[number % len(texts)] for number in range(count)]


def _steps(steps: int) -> dict[str, Any]:
    begin = 1000 * np.arange(steps)
    return {
        "step": range(steps),
        "start_ns": begin,
        "end_ns": begin + 1000,
        "sample_count": [4] * steps,
        "instrumented": [True] * steps,
    }


def _spans(texts: Sequence[str], steps: int) -> dict[str, Any]:
    """Every third is of a phase that there is, so that there is something to show."""
    names = _chosen(texts, steps)
    phases = ["forward" if number % 3 == 0 else name for number, name in enumerate(names)]
    begin = 1000 * np.arange(steps)
    return {
        "step": range(steps),
        "phase": phases,
        "name": names,
        "depth": [0] * steps,
        "thread": ["MainThread"] * steps,
        "start_ns": begin,
        "end_ns": begin + 700,
    }


def _collectives(texts: Sequence[str], steps: int) -> dict[str, Any]:
    names, begin = _chosen(texts, steps), 1000 * np.arange(steps)
    told: dict[str, Any] = dict.fromkeys(("communicator", "op", "dtype", "backend"), names)
    times = {"ready_ns": begin + 700, "start_ns": begin + 700, "end_ns": begin + 900}
    return {
        **told,
        **times,
        "sequence": range(steps),
        "bytes": [64] * steps,
        "group_size": [2] * steps,
        "step": range(steps),
        "bucket": [0] * steps,
    }


SAMPLES_PER_STEP = 20


def _stacks(texts: Sequence[str], steps: int, worker: str = "") -> dict[str, Any]:
    count = SAMPLES_PER_STEP * steps
    return {
        "time_ns": range(5, 1000 * steps, 1000 // SAMPLES_PER_STEP),
        "late_ns": [0] * count,
        "every_ns": [1000 // SAMPLES_PER_STEP] * count,
        "thread": [f"{worker}0" if worker else "MainThread"] * count,
        "stack": [number % (2 * len(texts)) for number in range(count)],
    }


def _frames(texts: Sequence[str]) -> dict[str, Any]:
    """Each text as a file and a function: of the job, and below it of a package."""
    count = len(texts)
    return {
        "id": range(2 * count),
        "parent": [*[None] * count, *range(count)],
        "file": [*texts, *texts],
        "function": [*reversed(texts), *texts],
        "line": [7] * 2 * count,
        "origin": [*["job"] * count, *["package"] * count],
    }


def _samples(texts: Sequence[str]) -> dict[str, Any]:
    return {
        "device": texts,
        "source": texts,
        "metric": texts,
        "time_ns": range(len(texts)),
        "value": [2.0] * len(texts),
    }


def _events(texts: Sequence[str]) -> dict[str, Any]:
    count = len(EventKind) * len(texts)
    return {
        "time_ns": range(count),
        "kind": [kind for kind in EventKind for _ in texts],
        "name": list(texts) * len(EventKind),
        "detail": list(texts) * len(EventKind),
        "value": [2.0] * count,
    }
