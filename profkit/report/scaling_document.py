"""The scaling of a job over several runs as a document."""

from __future__ import annotations

from collections.abc import Sequence

from profkit.explain.scaling import FACTORS, ScalingRow
from profkit.report import ledger_words
from profkit.report.document import Document, Grid, Section, Tone, labelled
from profkit.text import percent, plural, significant


def scaling(rows: Sequence[ScalingRow]) -> Document:
    """Return the document of several runs, each against the first."""
    last = rows[-1]
    cells = []
    for number, row in enumerate(rows, start=1):
        figures = [significant(row.speed_up.value), significant(row.efficiency.value)]
        for name in FACTORS:
            figures.append(significant(row.factors[name].value))
        throughput = significant(row.throughput.value, 4)
        cells.append((f"{number}. {row.name}", str(row.gpus), throughput, *figures))
    notes = [f"efficiency = {' x '.join(FACTORS)}"]
    if not all(row.waiting_known for row in rows):
        notes.append(
            "Not all runs separate waiting for late ranks from transfer; "
            "there it is part of communication."
        )
    header = (
        *("run", "ranks", "throughput", "speed-up", "efficiency"),
        *(*FACTORS[:-1], "communication"),
    )
    grid = Grid(header, tuple(cells), frozenset(range(1, len(header))))
    runs = []
    for number, row in enumerate(rows[1:], start=2):
        runs.append((f"{number}. {row.name}", ledger_words.scaling_words(row)))
        for words in ledger_words.meeting_words(row.meeting):
            runs.append(("", words))
    return Document(
        title=" → ".join(row.name for row in rows),
        subtitle="How the job scales",
        verdict=f"efficiency {percent(last.efficiency.value)} on {plural(last.gpus, 'rank')}",
        tone=Tone.UNSURE if last.doubt else Tone.PLAIN,
        summary=last.doubt,
        figures=(),
        warnings=(),
        sections=(
            Section("Scaling", tuple(notes), grid=grid),
            Section("Against the first run", grid=labelled(runs)),
        ),
    )
