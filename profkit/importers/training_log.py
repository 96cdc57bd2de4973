"""Training logs of PaddleClas, PaddleSeg, PaddleVideo, PaddleNLP, OpenMMLab, detectron2, NVIDIA's examples and others.

A log knows no phases, and no rank but the one that prints. A run made of one has the steps' wall
time and, where the log states the wait for data, a span of phase `data` at each step's beginning.

Many lines are about a window of N steps and state their mean. Such a window becomes N steps of that
mean, with the samples of one each: sums, rates and step times are then those of the log. The steps
of a window are equal by construction, and intervals stay honest because they are made for
correlated steps: equal neighbours count as one. `config` says how many steps a line is about
(`steps_per_line`) and what its times are means of (`step_times`). Such steps have no epoch, because
a mean cannot be taken apart where one begins; the loss, which is of the printed step, stands at the
window's last one. Lines that are about one step in twenty leave the other nineteen out.

Where a tool counts the samples of all cards, each step has rank 0's share of them, and `config`
says for how many ranks it speaks, so that a report shows what the log shows.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, Target, clean_name
from profkit.importers.logs.assemble import (
    GRAMMARS,
    MARKS_ALONE,
    find_grammar,
    load_grammars,
    parse_log,
)
from profkit.importers.logs.parsed import ParsedLog, Scope, Stated
from profkit.importers.logs.placing import Placed, place_steps, world_size
from profkit.importers.logs.text import read_lines
from profkit.importers.reading.blocks import TornError, read_blocks
from profkit.text import safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.vocab import RunState

SEARCHED_BYTES = 32 << 20
"""How far into a file records are looked for: configurations and warnings of 200 kB come first in some."""

_NOT_LOGS = (b'{"', b'[{"', b"{\n", b"[\n", b"SQLite format 3\0", b"\x80\x04", b"\x80\x02")


class TrainingLog:
    """Each file is a log, with a run for each that it holds."""

    name = "training_log"
    title = "training logs: PaddleClas, PaddleSeg, PaddleVideo, PaddleNLP, OpenMMLab, detectron2, NVIDIA DLLogger, AI-Rank, and others"

    def recognises(self, head: bytes, path: Path) -> float:
        if (
            head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_NOT_LOGS)
            or head.count(0) > len(head) / 8
            or not head
        ):
            return 0.0
        grammars = load_grammars()
        found = find_grammar(read_lines([head]), grammars)
        if found is None or found.name == MARKS_ALONE:
            found = find_grammar(read_lines(_beginning(path)), grammars) or found
        if found is None:
            return 0.0
        return 0.4 if found.name == MARKS_ALONE else 0.8

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            torn: list[str] = []
            logs = parse_log(
                functools.partial(_whole, path, torn),
                path.name,
                samples_per_step=target.options.samples_per_step,
            )
            if not logs:
                raise UnreadableError(
                    f"{safe_text(str(path))}: no line of it is of a training log that profkit knows (it knows {', '.join(GRAMMARS.names())})"
                )
            for place, log in enumerate(logs, 1):
                yield _write(
                    log, path, f"{path.stem}-run{place}" if len(logs) > 1 else "", target, torn[-1:]
                )


def _beginning(path: Path) -> Iterator[bytes]:
    """The file's first part; nothing where it cannot be read."""
    left = SEARCHED_BYTES
    try:
        for block in read_blocks(path):
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return
    except UnreadableError:
        return


def _whole(path: Path, torn: list[str]) -> Iterator[bytes]:
    """All of the file, or what of a damaged one can be had; `torn` is told why there is no more."""
    try:
        yield from read_blocks(path)
    except TornError as error:
        torn.append(str(error))


def _write(log: ParsedLog, path: Path, name: str, target: Target, torn: Iterable[str]) -> Imported:
    with target.new_run(TrainingLog.name, [path], name) as draft:
        placed = place_steps(log)
        tables = draft.rank(
            RankManifest(
                0,
                "",
                0,
                clean_name(log.metadata.device or ""),
                placed.anchor,
                world_size=world_size(log),
                framework=log.metadata.framework,
            )
        )
        if len(placed.step):
            tables.write("steps", placed.step_columns())
        if placed.has_data.any():
            tables.write("spans", placed.span_columns())
        draft.dropped.update(placed.dropped)
        draft.flags.extend([*map(str, log.flags), *torn])
        return draft.finish(describe(log, placed))


def describe(log: ParsedLog, placed: Placed) -> RunManifest:
    """`run.json`: what the log says of the job, and how its lines are to be read."""
    anchor = placed.anchor
    created = anchor.realtime_ns - anchor.monotonic_ns if anchor.realtime_ns else 0
    return RunManifest(
        workload=clean_name(log.metadata.model or log.title),
        framework=log.metadata.framework,
        state=RunState.ABORTED if log.aborted else RunState.RUNNING,
        why=log.aborted,
        world_size=world_size(log),
        created_ns=created,
        ended_ns=created + int(placed.end_ns[-1]) if created and len(placed.end_ns) else None,
        config={key: value for key, value in _config(log, placed).items() if value is not None},
        environment={
            "versions": {
                clean_name(name): clean_name(value) for name, value in log.metadata.versions.items()
            }
        },
    )


def _config(log: ParsedLog, placed: Placed) -> dict[str, Any]:
    metadata = log.metadata
    windows = [each.steps for each in log.records]
    return {
        "log_grammar": log.grammar,
        "log_of": log.title,
        "precision": metadata.precision,
        "batch_size": metadata.batch_size,
        "global_batch_size": metadata.global_batch_size,
        "device": clean_name(metadata.device) if metadata.device else None,
        "sample_unit": log.unit,
        "samples_counted_of": log.scope.value,
        "step_times": log.times.value,
        "steps_per_line": statistics.mode(windows) if windows else None,
        "rows_speak_for_ranks": world_size(log) if log.scope is Scope.ALL else None,
        "warmup": placed.warm_up,
        "told_by_file_name": list(metadata.from_name) or None,
        "stated": [_stated(each) for each in log.stated[-20:]] or None,
    }


def _stated(each: Stated) -> dict[str, Any]:
    return {
        "what": each.what,
        "value": each.value,
        "unit": each.unit,
        "how": each.how,
        "line": each.line,
    }


IMPORTER = TrainingLog()
