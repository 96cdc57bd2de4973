"""Connect the parts of one rank: recorder, manifests and profkit's own samples.

`Job` is built of these parts. Whatever writes files is imported when it is used, so that a job does
not wait for the import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from profkit import vocab
from profkit.clock import now_ns, read_anchor
from profkit.instrument.blocks import off_blocks
from profkit.instrument.guard import FAILURES
from profkit.instrument.ranges import Ranges
from profkit.instrument.recorder import Recorder, measure_span_cost
from profkit.instrument.rows import COLUMNS, Append, EventRow, Row, Sink
from profkit.own_process import threads_are_patched
from profkit.rank import Rank
from profkit.vocab import SPAN_COST

if TYPE_CHECKING:
    from profkit.run.choosing import Choice
    from profkit.trace import RankManifest, RankWriter, RunManifest


def make_recorder(sink: Sink, choice: Choice, ranges: Ranges | None) -> Recorder:
    """Return a recorder that leaves out the phases of some steps, to measure its own cost."""
    is_measured = choice.is_measured(off_blocks())
    return Recorder(sink, ranges=ranges, is_measured=is_measured)


def describe_rank(rank: Rank, device: str, framework: str) -> RankManifest:
    """Return the contents of `rank.json` for this process, with the clocks of this moment."""
    from profkit.environment import allowed_variables
    from profkit.run.facts import read_libraries
    from profkit.trace import RankManifest

    return RankManifest(
        rank.number,
        platform.node(),
        os.getpid(),
        device,
        read_anchor(),
        rank.local_rank,
        rank.world_size,
        framework,
        environment={
            "variables": allowed_variables(os.environ),
            "libraries": read_libraries(framework, device),
        },
    )


def complete_manifest(
    manifest: RunManifest, *, created_ns: int, in_job: bool = False
) -> RunManifest:
    """Add what is the same for every run: its owner, the machine and profkit's version."""
    from profkit.environment import read_environment
    from profkit.run.facts import read_facts
    from profkit.trace.integrity import this_process
    from profkit.version import __version__

    facts = read_facts(manifest.config.get("command", ()), in_job=in_job)
    return dataclasses.replace(
        manifest,
        created_ns=created_ns,
        profkit_version=__version__,
        owner=this_process(),
        environment={**read_environment(), **facts, **manifest.environment},
    )


def open_writer(
    run: Path,
    manifest: RankManifest,
    rows: dict[str, list[Row]],
    complete: Callable[[bool], None] | None,
) -> RankWriter:
    """Have the files of a rank opened, by the scribe if there is one; a long run is thinned."""
    from profkit.scribe.sending import SentRows, connect
    from profkit.scribe.thinned import full_bytes, new_thinner
    from profkit.trace import RankWriter

    scribe = connect(run)
    if scribe is not None:
        with contextlib.suppress(ConnectionError):
            files = SentRows(scribe, run, manifest, full_bytes())
            return RankWriter(run, manifest, rows=rows, complete=complete, files=files)
    return RankWriter(
        run,
        manifest,
        rows=rows,
        columns=COLUMNS,
        complete=complete,
        thinner=new_thinner,
        full_bytes=full_bytes(),
    )


def note_span_cost(samples: Append, ranges: Ranges | None, *, repeats: int) -> None:
    """Measure what a phase costs the loop in this process, and write it down."""
    cost = measure_span_cost(ranges=ranges, repeats=repeats)
    samples((None, "profkit", SPAN_COST, now_ns(), cost))


def note_threads(samples: Append) -> None:
    """Write down if the threads of profkit are greenlets in this process."""
    if threads_are_patched():
        samples((None, "profkit", vocab.PATCHED_THREADS, now_ns(), 1.0))


def note_failures(events: Append) -> None:
    """Write down which of profkit's hooks failed in this process, and how often."""
    for site, count in FAILURES.items():
        events(EventRow(None, now_ns(), vocab.EventKind.FAILURE, site, None, float(count)))
