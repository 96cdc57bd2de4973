"""What a report says of devices equals an oracle that reads the trace's text on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.overview import build_overview
from profkit.frame.run_frame import frame_of
from profkit.importers import nsys
from profkit.importers.kineto import IMPORTER
from profkit.report.overview_document import illustrate, overview
from profkit.show import html, markdown
from profkit.show import text as show_text
from profkit.text import duration
from profkit.trace import Trace
from tests.documents import report_json
from tests.importers.conftest import KINETO, NSYS, Import, needs_data
from tests.importers.oracle import device_table, read_kineto, read_nsys

KEYS = {
    "window": "window_ns",
    "busy": "busy_ns",
    "compute": "compute_ns",
    "exchange": "communication_ns",
    "move": "copies_ns",
    "exposed": "communication_exposed_ns",
    "hidden": "communication_hidden_ns",
    "alone": "copies_alone_ns",
    "idle": "idle_ns",
    "late": "idle_launched_late_ns",
    "synchronised": "idle_after_synchronisation_ns",
    "other": "idle_for_other_reasons_ns",
}


def reported(run: Path) -> list[dict[str, Any]]:
    figures = report_json(build_overview(Trace.open(run)))["device_time"]
    found: list[dict[str, Any]] = figures["devices"]
    return found


def steps_of(run: Path, rank: int = 0) -> list[tuple[int, int]]:
    """When the used steps of a rank began and ended, on the host."""
    trace = Trace.open(run)
    used = set(frame_of(trace).selection.steps.tolist())
    rows = trace.steps.select(["rank", "step", "start_ns", "end_ns"]).to_pylist()
    return [
        (each["start_ns"], each["end_ns"])
        for each in rows
        if each["rank"] == rank and each["step"] in used
    ]


def by_name(device: dict[str, Any]) -> dict[str, int]:
    return {name: device[key] for name, key in KEYS.items()}


def says_exposure(run: Path, exposed: int, hidden: int, steps: int) -> bool:
    """Whether the first table of every format has the sentence with these figures."""
    trace = Trace.open(run)
    view = build_overview(trace)
    document = overview(view, illustrate(trace, view))
    sentence = (
        f"Communication: {duration(exposed / steps)} per step exposed, "
        f"{duration(hidden / steps)} hidden by compute."
    )
    first = document.sections[0]
    texts = [
        show_text.document(document),
        markdown.document(document),
        html.document(document, "1"),
    ]
    flat = [" ".join(text.split()) for text in texts]
    return first.title == "What the device did" and all(sentence in text for text in flat)


@needs_data
@pytest.mark.parametrize("path", KINETO, ids=lambda path: f"{path.parent.name}-{path.name[:12]}")
def test_a_kineto_trace(path: Path, import_files: Import) -> None:
    (made,) = import_files(IMPORTER, path)
    (found,) = reported(made.run)
    rank = int(found["rank"])
    expected = device_table(*read_kineto(path), steps_of(made.run, rank))
    assert by_name(found) == expected
    if expected["exchange"]:
        sums = expected["exposed"], expected["hidden"]
        assert says_exposure(made.run, *sums, found["steps"])


@needs_data
@pytest.mark.parametrize("path", NSYS, ids=lambda path: path.stem)
def test_an_nsys_export(path: Path, import_files: Import) -> None:
    (made,) = import_files(nsys.IMPORTER, path)
    exposed = hidden = steps = 0
    for device in reported(made.run):
        steps_of_rank = steps_of(made.run, int(device["rank"]))
        read = read_nsys(path, int(device["device"].removeprefix("cuda:")))
        expected = device_table(*read, steps_of_rank)
        assert by_name(device) == expected
        exposed, hidden = exposed + expected["exposed"], hidden + expected["hidden"]
        steps += device["steps"]
    assert says_exposure(made.run, exposed, hidden, steps)


@needs_data
def test_the_exchange_and_the_ledger_agree_with_the_device(import_files: Import) -> None:
    """Eight ranks: exposed communication is the same figure on every screen that has it."""
    paths = [path for path in KINETO if path.parent.name == "dlrm_8rank_v100"]
    (made,) = import_files(IMPORTER, *paths)
    trace = Trace.open(made.run)
    view = build_overview(trace)
    tables = {}
    for path in paths:
        number = int(path.name[len("worker")])
        tables[number] = device_table(*read_kineto(path), steps_of(made.run, number))
    assert view.exchange is not None
    for rank in view.exchange.ranks:
        expected = tables[rank.rank]
        assert (rank.exposed_ns, rank.hidden_ns) == (expected["exposed"], expected["hidden"])
    exposed = sum(table["exposed"] for table in tables.values())
    costs = frame_of(trace).costs
    assert int(costs.parts["allreduce"].sum()) == exposed
    assert sum(int(part.sum()) for part in costs.inside["allreduce"].values()) == exposed
    assert view.late_rank is not None
    assert view.late_rank.rank == 7
    assert view.late_rank.waited_ns == pytest.approx(6.27e6, rel=0.01)
