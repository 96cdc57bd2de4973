"""Training logs of PaddleClas, OpenMMLab, detectron2, NVIDIA's examples and other tools.

A log has no phases, and no rank but the one that prints. Its run has the steps' wall time and, if
the log states the wait for data, a span of phase `data` at the beginning of each step.

Many lines are about a window of N steps and state their mean. Such a window becomes N steps of that
mean, each with the samples of one step, so that sums, rates and step times equal those of the log.
The steps of a window are equal by construction. Intervals stay correct because they are made for
correlated steps: equal neighbours count as one. `config` says how many steps a line is about
(`steps_per_line`) and what its times are means of (`step_times`). Such steps have no epoch, because
a mean cannot be split where one begins. The loss, which is of the printed step, belongs to the
window's last step. Lines that are about one step in twenty say nothing about the other nineteen.

Each step has the samples of rank 0: if a tool counts those of all cards, rank 0's share of them.
`config` says how many ranks that one speaks for, if the log or the file's name tells, and what the
log counted, so that a report can show the throughput of the job next to the log's own figure.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from profkit.errors import UnreadableError
from profkit.importers.base import Imported, RunDraft, Target, clean_name
from profkit.importers.logs.assemble import (
    GRAMMARS,
    MARKS_ALONE,
    find_grammar,
    load_grammars,
    parse_log,
)
from profkit.importers.logs.formats.huggingface import STATES_ALL
from profkit.importers.logs.marks import count_cards
from profkit.importers.logs.parsed import Metadata, ParsedLog, Stated
from profkit.importers.logs.placing import (
    PlacedSteps,
    drop_untimed,
    place_steps,
    world_size,
)
from profkit.importers.logs.tables import as_lines
from profkit.importers.logs.text import as_count, read_lines
from profkit.importers.reading.blocks import TornError, read_beginning, read_blocks
from profkit.importers.reading.system_file import describe_system, find_system
from profkit.importers.reading.tensorboard import is_event_file
from profkit.text import plural, safe_text
from profkit.trace.manifest import RankManifest, RunManifest
from profkit.trace.sharing import AT_LEAST
from profkit.vocab import RunState

SEARCHED_BYTES = 32 << 20
"""Records are searched up to here: some logs begin with 200 kB of configurations and warnings."""
MAX_RESULTS = 20
"""The run keeps this many of the last results that the log states, and all of its timers."""

DATA_RANKS_ALONE = (
    "the log states {} data-parallel ranks, and not whether others share their samples (tensor or "
    "pipeline parallelism), so the job may have more ranks; keep the launcher's output in the log"
)

OLDER_RESULTS = f"results that the log states before the last {MAX_RESULTS}"
_DIMENSIONS = {
    "cp": "context_parallel",
    "sp": "sequence_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
}
"""The settings that state the sizes of dimensions whose ranks share their samples."""
_RARE = ("cp", "sp")
"""Dimensions that most jobs lack, so that a size of one is not worth a word."""
_RESULT_FIELDS = ("what", "value", "unit", "how", "line", "is_timer")
_LOGS_IN_JSON = re.compile(rb"\A\{\"[^\n]{2,9999}\}\r?\n(?:\{|\Z)|\"log_history\":\s")
_NOT_LOGS = (b'{"', b'[{"', b"{\n", b"[\n", b"SQLite format 3\0", b"\x80\x04", b"\x80\x02")


class TrainingLog:
    """Imports each file as a log, with a run for each that it holds."""

    name = "training_log"
    title = (
        "training logs: PaddleClas, PaddleSeg, PaddleVideo, PaddleNLP, OpenMMLab, detectron2, "
        "NVIDIA DLLogger, Megatron-LM, DeepSpeed, MLPerf, nanoGPT, torchtitan, timm, Hugging Face, "
        "LLaMA-Factory, TensorBoard's events, tables (CSV), and what else prints a step and its "
        "time"
    )

    def recognises(self, head: bytes, path: Path) -> float:
        is_binary = head.count(0) > len(head) / 8 and not is_event_file(head)
        is_other = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_NOT_LOGS)
        if not head or is_binary or (is_other and not _LOGS_IN_JSON.search(head)):
            return 0.0
        grammars = load_grammars()
        found = find_grammar(read_lines(as_lines([head])), grammars)
        if found is None or found.name == MARKS_ALONE:
            beginning = as_lines(read_beginning(path, SEARCHED_BYTES))
            found = find_grammar(read_lines(beginning), grammars) or found
        if found is None:
            return 0.0
        if found.name == MARKS_ALONE:
            return 0.4
        return 0.8

    def divide(self, sources: Sequence[Path]) -> list[Sequence[Path]]:
        """Return the files of each run."""
        return [[path] for path in sources]

    def read(self, sources: Sequence[Path], target: Target) -> Iterator[Imported]:
        for path in sources:
            problems: list[str] = []
            blocks = functools.partial(_read_whole, path, problems)
            samples, system = target.options.samples_per_step, find_system(path)
            cards = count_cards(system)
            logs = parse_log(blocks, path.name, samples_per_step=samples, cards=cards)
            if not logs:
                raise UnreadableError(
                    f"{safe_text(str(path))}: no line belongs to a training log that profkit knows "
                    f"(it knows {', '.join(GRAMMARS.names())}); name another format with --format"
                )
            usable = [log for log in logs if log.grammar == MARKS_ALONE or _is_usable(log)]
            if not usable:
                raise UnreadableError(_say_what_is_missing(path, logs))
            for place, log in enumerate(logs, 1):
                if log not in usable:
                    problems.append(
                        f"run {place} of the {len(logs)} in the file has "
                        f"{plural(count_timed(log), 'usable line')} and was not imported"
                    )
            for place, log in enumerate(logs, 1):
                name = ""
                if len(logs) > 1:
                    name = f"{path.stem}-run{place}"
                if log in usable:
                    with target.new_run(self.name, [path], name) as draft:
                        draft.flags.extend(problems)
                        yield self._write(log, draft, describe_system(system))

    def _write(self, log: ParsedLog, draft: RunDraft, system: dict[str, Any]) -> Imported:
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
        if placed.has_data.any() or placed.other_ns.any():
            tables.write("spans", placed.span_columns())
        draft.dropped.update(placed.dropped)
        if left := len(log.stated) - len(_kept_results(log)):
            draft.dropped[OLDER_RESULTS] += left
        draft.flags[:0] = map(str, log.flags)
        if log.metadata.is_lower_bound:
            draft.flags.append(DATA_RANKS_ALONE.format(log.metadata.data_ranks))
        return draft.finish(describe(log, placed, system))


def count_timed(log: ParsedLog) -> int:
    """Return the number of lines that say how long a step took."""
    return len(drop_untimed(log.records, Counter()))


def _is_usable(log: ParsedLog) -> bool:
    """Return whether two lines have a step time, or the only one is about the whole training."""
    count = count_timed(log)
    return count > 1 or (count == len(log.records) == 1 and log.grammar == STATES_ALL)


def _say_what_is_missing(path: Path, logs: Sequence[ParsedLog]) -> str:
    """Return why a file cannot be imported, and what to do about it, in one line."""
    lines = sum(len(log.records) for log in logs)
    timed = sum(map(count_timed, logs))
    if timed:
        why = (
            f"has {plural(timed, 'line')} about training from which a step time follows, and a "
            "figure needs two of one run; import a longer log"
        )
    elif lines:
        first = min(log.records[0].line for log in logs if log.records)
        lacks, remedy = "a usable step time or throughput", "print them with each line"
        if any(each.throughput for log in logs for each in log.records):
            lacks, remedy = "a step time or a batch size", "give --samples-per-step"
        why = (
            f"has {plural(lines, 'line')} about training (the first is line {first:,}) and none "
            f"with {lacks}: they are missing, zero or nan; {remedy}, import TensorBoard's events "
            "of the job, or record it (profkit run)"
        )
    else:
        why = (
            f"has lines of {logs[0].title} and none with a step and its figures; import the log of "
            "the process that prints the training"
        )
    return f"{safe_text(str(path))}: {why}"


def _read_whole(path: Path, problems: list[str]) -> Iterator[bytes]:
    """Yield the file; if it is damaged, what comes before, and add the reason to `problems`."""
    try:
        yield from as_lines(read_blocks(path))
    except TornError as error:
        # The run keeps the file's name only: a path may contain a user's name.
        problems.append(str(error).replace(safe_text(str(path)), safe_text(path.name)))


def describe(
    log: ParsedLog, placed: PlacedSteps, system: Mapping[str, Any] | None = None
) -> RunManifest:
    """Return the run's manifest: what the log says about the job, and how to read its figures."""
    anchor = placed.anchor
    created = 0
    if anchor.realtime_ns:
        created = anchor.realtime_ns - anchor.monotonic_ns
    ended = created + int(placed.end_ns[-1]) if created and len(placed.end_ns) else None
    described = dict(system or {})
    versions = described.pop("versions", {})
    for name, version in log.metadata.versions.items():
        versions[clean_name(name)] = clean_name(version)
    return RunManifest(
        workload=clean_name(log.metadata.model or log.title),
        framework=log.metadata.framework,
        state=RunState.ABORTED if log.aborted else RunState.RUNNING,
        why=log.aborted,
        world_size=world_size(log),
        created_ns=created,
        ended_ns=ended,
        config=_describe_config(log, placed),
        environment={**described, "versions": versions},
    )


def _kept_results(log: ParsedLog) -> list[Stated]:
    """Return the results of a log that its run keeps, in their order."""
    kept, others = [], 0
    for each in reversed(log.stated):
        others += not each.is_timer
        if each.is_timer or others <= MAX_RESULTS:
            kept.append(each)
    return kept[::-1]


def _describe_config(log: ParsedLog, placed: PlacedSteps) -> dict[str, Any]:
    metadata = log.metadata
    results = []
    for each in _kept_results(log):
        results.append({name: getattr(each, name) for name in _RESULT_FIELDS})
    windows = [each.steps for each in log.records]
    distances: Counter[int] = Counter()
    for before, record in itertools.pairwise(log.records):
        if before.epoch == record.epoch:
            distances[record.index - before.index] += 1
    printed_every = None
    if log.times.is_single and distances:  # each line is about one step alone
        usual = distances.most_common(1)[0][0]
        if usual > 1:
            printed_every = usual
    config: dict[str, Any] = {
        **{name: clean_name(value) for name, value in metadata.knobs.items()},
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
        "printed_every": printed_every,
        "parallel": _dimensions(metadata),
        "rows_speak_for_ranks": metadata.data_ranks or metadata.world_size,
        AT_LEAST: metadata.data_ranks if metadata.is_lower_bound else None,
        "cards_of_one_node": metadata.cards_of_one_node,
        "accumulation": metadata.accumulation,
        "warmup": placed.warm_up,
        "told_by_file_name": list(metadata.from_name) or None,
        "stated": results or None,
    }
    return {key: value for key, value in config.items() if value is not None}


def _dimensions(metadata: Metadata) -> dict[str, int] | None:
    """Return the dimensions of a job whose cards split a model, as far as the log states them."""
    world, data_ranks = metadata.world_size, metadata.data_ranks
    if not world or not data_ranks or world == data_ranks:
        return None
    sizes = {"dp": data_ranks}
    for name, knob in _DIMENSIONS.items():
        size = as_count(metadata.knobs.get(knob))
        if size and (size > 1 or name not in _RARE):
            sizes[name] = size
    if math.prod(sizes.values()) == world:
        return sizes
    return {"dp": data_ranks}


IMPORTER = TrainingLog()
