"""Published logs with known causes: causes that must be named, and causes that must not."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from profkit.explain.explained import Explained, explain
from profkit.explain.ledger import Verdict
from profkit.explain.rules.base import stated_input_ns
from profkit.importers import kineto
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not (DATA / "log_cases.csv").exists(), reason="the logs are not here: ../shared/data"
)

Open = Callable[[str], Trace]


class Expected(NamedTuple):
    """The causes that a case must have, those that it must not, and its verdict."""

    said: frozenset[str]
    unsaid: frozenset[str]
    verdict: Verdict


_COMMUNICATION, _INPUT, _HIDDEN = (
    "exposed_communication",
    "input_bound",
    "overlapped_reader",
)


def _expect(said: str, unsaid: str = "", verdict: Verdict = Verdict.REGRESSION) -> Expected:
    return Expected(frozenset(said.split()), frozenset(unsaid.split()), verdict)


EXPECTED = {
    "R01": _expect(_INPUT, _COMMUNICATION),
    "R03": _expect(_HIDDEN, _INPUT, Verdict.NEUTRAL),
    "R06": _expect(_INPUT),
    "R08": _expect(f"{_COMMUNICATION} {_INPUT}"),
    "R09": _expect(_COMMUNICATION, _INPUT),
    "R11": _expect("", _INPUT),
    "H01": _expect(_COMMUNICATION),
    "H04": _expect("", _INPUT),
    "H05": _expect("", _INPUT, Verdict.CANNOT_JUDGE),
    "T01": _expect(_COMMUNICATION, _INPUT),
    "M01": _expect("", _INPUT, Verdict.IMPROVEMENT),
    "P01": _expect("", _INPUT),
}
"""The expectations by case.

T01's log of one GPU has seven usable steps, which an exact test judges. H05's logs have four
windows of two steps, which is inconclusive.
"""


def _cases() -> dict[str, dict[str, str]]:
    if not (DATA / "log_cases.csv").exists():
        return {}
    with (DATA / "log_cases.csv").open() as file:
        return {row["case"]: row for row in csv.DictReader(file)}


CASES = _cases()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """The last run of a log: one file may hold an aborted or other run before it."""
    folder = tmp_path_factory.mktemp("logs")
    runs: dict[str, Trace] = {}

    def open_log(name: str) -> Trace:
        if name not in runs:
            runs[name] = Trace.open(
                list(IMPORTER.read([DATA / "logs" / name], Target(folder)))[-1].run
            )
        return runs[name]

    return open_log


@pytest.mark.parametrize("case", EXPECTED)
def test_the_gap_of_a_published_pair(case: str, opened: Open) -> None:
    row, expected = CASES[case], EXPECTED[case]
    view = explain(opened(row["baseline_log"]), opened(row["target_log"]))
    kinds = {found.kind for found in view.causes}
    assert view.ledger.efficiency.value == pytest.approx(float(row["efficiency"]), abs=0.01)
    assert view.ledger.verdict is expected.verdict
    assert expected.said <= kinds
    assert not expected.unsaid & kinds
    if row["data_delta_s"] and _HIDDEN not in kinds:
        assert _input_share(view) == pytest.approx(
            float(row["data_delta_s"]) / float(row["loss_s"]), abs=0.05
        )


def _input_share(view: Explained) -> float:
    """Input's part of the gap, by its row or by what the logs state of the whole run."""
    row, total = view.ledger.find("data"), view.ledger.total.delta.value
    if row is not None:
        return row.delta.value / total
    before, after = stated_input_ns(view.case.base), stated_input_ns(view.case.target)
    assert before is not None
    assert after is not None
    return (after - before) / (total * view.ledger.samples_per_step)


def test_a_loader_without_workers_is_what_the_gap_of_two_profiles_is(tmp_path: Path) -> None:
    """Five steps of a real job on a GPU allow no verdict, and the row is still the right one."""
    paths = [
        next((DATA / "kineto" / f"resnet50_num_workers_{workers}").glob("*.json.gz"))
        for workers in (4, 0)
    ]
    fast, slow = (
        Trace.open(next(iter(kineto.IMPORTER.read([path], Target(tmp_path)))).run) for path in paths
    )
    ledger = explain(fast, slow).ledger
    assert ledger.verdict is Verdict.CANNOT_JUDGE
    assert ledger.largest is not None
    assert ledger.largest.name == "data"
    hidden = next(row for row in ledger.beside if row.name.startswith("data"))
    waited_ns = ledger.largest.delta.value + hidden.delta.value
    assert waited_ns == pytest.approx(45.7e6, rel=0.01), "the host's wait, by the trace itself"
