"""The lines of a run's code by phase, those of its loader's workers, and its flame graphs."""

from __future__ import annotations

from dataclasses import dataclass

from profkit.analysis.flames import Flame, build_flames
from profkit.analysis.stacks import FEWEST_SAMPLES, CodeView, LineTime, view_code
from profkit.analysis.worker_lines import WorkerLines, view_workers
from profkit.frame.columns import rows_of_rank
from profkit.frame.run_frame import frame_of
from profkit.trace import Trace

WORKERS = "workers"
"""Stands for the phase of lines that the loader's workers ran."""

NO_STACKS = "no stacks were sampled in the used steps"
REMEDY = "record with --lines on"


@dataclass(frozen=True)
class CodeRow:
    """A line in a phase, or in the loader's workers."""

    phase: str
    line: LineTime


@dataclass(frozen=True)
class CodeScreenView:
    """The lines of all phases with enough samples, phase by phase.

    `rank` is null for all ranks.
    `too_few` are the phases with fewer samples, and how many they have.
    """

    rank: int | None
    rows: tuple[CodeRow, ...]
    too_few: tuple[tuple[str, int], ...]
    samples_needed: int
    flames: tuple[Flame, ...]
    code: CodeView | None
    workers: WorkerLines | None
    why_empty: str = ""
    """Why there are no samples, and what helps; empty if there are some."""

    @property
    def folder(self) -> str:
        """The folder that the files of the loop's lines have in common."""
        return self.code.folder if self.code is not None else ""


def build_code_view(trace: Trace, rank: int | None = None) -> CodeScreenView:
    """Return the lines of a run, or of one rank."""
    stacks, frames, steps, spans = trace.stacks, trace.frames, trace.steps, trace.spans
    used = frame_of(trace).selection.steps
    workers = trace.worker_stacks
    if rank is not None:
        stacks, frames = rows_of_rank(stacks, rank), rows_of_rank(frames, rank)
        steps, spans = rows_of_rank(steps, rank), rows_of_rank(spans, rank)
        workers = rows_of_rank(workers, rank)
    code = view_code(stacks, frames, steps, spans, used)
    at_work = view_workers(workers, frames, steps, used)
    why_empty = ""
    if code is None and at_work is None:
        is_import = "imported_from" in trace.manifest.config
        why_empty = NO_STACKS if is_import else f"{NO_STACKS}: {REMEDY}"
    rows: list[CodeRow] = []
    too_few: list[tuple[str, int]] = []
    flames: tuple[Flame, ...] = ()
    if code is not None:
        for part in code.phases:
            if part.judged:
                rows.extend(CodeRow(part.phase, line) for line in part.lines)
            else:
                too_few.append((part.phase, part.samples))
        flames = build_flames(code, stacks, frames, steps, spans, used)
    if at_work is not None:
        rows.extend(CodeRow(WORKERS, line) for line in at_work.lines)
        if not at_work.judged:
            too_few.append((WORKERS, at_work.samples))
    return CodeScreenView(
        rank, tuple(rows), tuple(too_few), FEWEST_SAMPLES, flames, code, at_work, why_empty
    )
