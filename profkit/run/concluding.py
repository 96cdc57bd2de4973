"""Write into the run of a command that it has ended, and say what was recorded."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from profkit.attached import NOTES_FILE, TRAINED, UNCOMPILED, read_notes
from profkit.clock import wall_ns
from profkit.errors import ProfkitError
from profkit.run.compiled import COST, HELP
from profkit.run.run_folder import first_libraries, record_own_cost
from profkit.run.witness import Witness, explain_nothing
from profkit.text import plural, safe_text, shell_word
from profkit.trace.flag import Flag, FlagKind
from profkit.trace.folders import rank_manifests
from profkit.trace.reader import Trace
from profkit.vocab import MEMORY_AT_FAILURE, PROBES, RunState


class Concluded(NamedTuple):
    """Whether a run has ranks, and what to say of it."""

    recorded: bool
    lines: list[str]


def conclude_run(
    run: Path, code: int, witness: Witness, probes: Sequence[Mapping[str, int]], hang: str
) -> Concluded:
    """Write into the run how the job ended."""
    try:
        trace = Trace.open(run)
        why = "" if code == 0 else describe_end(code)
        if why and hang:
            why += f"; it stood still before: {hang}"
        dataclasses.replace(
            trace.manifest,
            state=RunState.ABORTED if why else RunState.COMPLETE,
            why=why,
            ended_ns=wall_ns(),
            environment={**trace.manifest.environment, **first_libraries(run)},
            flags=(*trace.manifest.flags, *flag_unrecorded(run, len(rank_manifests(trace.ranks)))),
            config={**trace.manifest.config, PROBES: list(probes)},
        ).write(run)
    except (ProfkitError, OSError) as error:
        return Concluded(False, [f"the run cannot be marked as ended: {error}"])
    path = os.path.relpath(run)
    if trace.ranks:
        record_own_cost(run)
        ranks = plural(len(trace.ranks), "rank")
        see = f"see 'profkit report {shell_word(path)}'"
        lines = [f"{ranks} recorded in {safe_text(path)}; {see}"]
        if any(event == UNCOMPILED for event, _, _ in read_notes(str(run))):
            lines.append(f"the job's Python lacks modules in C: {COST}; {HELP}")
    else:
        unhooked = [found for found, _ in witness.unhooked.most_common()]
        lines = explain_nothing(run, unhooked)
    if any(run.glob(f"{MEMORY_AT_FAILURE}-*")):
        see = f"'profkit report {shell_word(path)}' shows what held it"
        lines.append(f"an allocation of device memory failed; {see}")
    (run / NOTES_FILE).unlink(missing_ok=True)
    return Concluded(bool(trace.ranks), lines)


def flag_unrecorded(run: Path, recorded: int) -> Iterator[Flag]:
    """Yield a flag if more processes have trained than are recorded.

    They were no ranks of one group: each trained as the same rank, side by side or in turns.
    """
    trained = {process for event, process, _ in read_notes(str(run)) if event == TRAINED}
    if 0 < recorded < len(trained):
        text = (
            f"{len(trained):,} processes of the job trained, and {recorded:,} of them "
            f"{'is' if recorded == 1 else 'are'} recorded: steps, samples and throughput are "
            "without the others'"
        )
        yield Flag(text, FlagKind.UNRECORDED)


def describe_end(code: int) -> str:
    """Return how a job ended, in words."""
    if code >= 0:
        return f"the job ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the job was killed by {name}"
