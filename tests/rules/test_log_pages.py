"""The pages of published logs are those that were reviewed, and their figures those of the logs."""

from __future__ import annotations

import csv

import pytest

from profkit.analysis.overview import build_overview
from profkit.explain.explained import Explained, explain
from profkit.importers.base import Target
from profkit.importers.training_log import IMPORTER
from profkit.trace import Trace
from tests.rules.log_pages import DATA, OWN_CASES, PAGES, cases, page

CASES = cases()
needs_logs = pytest.mark.skipif(
    not CASES, reason="the published logs (../shared/data) are not here"
)
needs_own = pytest.mark.skipif("X01" not in CASES, reason="../shared/data/logs is not here")


def test_each_case_has_a_reviewed_page() -> None:
    with OWN_CASES.open(encoding="utf-8") as file:
        own = {row["case"] for row in csv.DictReader(file)}
    pages = {path.stem for path in PAGES.glob("*.txt")}
    assert len(own) >= 10
    assert own <= pages
    assert not CASES or pages == set(CASES)


@needs_logs
@pytest.mark.parametrize("case", sorted(path.stem for path in PAGES.glob("*.txt")))
def test_a_page_is_as_it_was_reviewed(case: str) -> None:
    assert page(CASES[case]) == (PAGES / f"{case}.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def own_views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Explained]:
    folder = tmp_path_factory.mktemp("logs")
    views = {}
    for case, row in CASES.items():
        if "base_log" in row:
            traces = []
            for log in (row["base_log"], row["target_log"]):
                made = list(IMPORTER.read([DATA / "logs" / log], Target(folder)))
                traces.append(Trace.open(made[-1].run))
            base, target = traces
            views[case] = explain(base, target)
    return views


@needs_own
@pytest.mark.parametrize("case", [f"X{number:02}" for number in range(1, 11)])
def test_figures_are_those_computed_by_hand(case: str, own_views: dict[str, Explained]) -> None:
    """`own_log_cases.csv` was written from the logs alone, before profkit read them."""
    row, view = CASES[case], own_views[case]
    sides = (("base", view.case.before.trace), ("target", view.case.after.trace))
    for side, trace in sides:
        overview = build_overview(trace)
        assert overview.world_size == int(row[f"{side}_cards"])
        assert overview.config["sample_unit"] == row["unit"]
        stated = float(row[f"{side}_throughput"])
        assert overview.throughput.value == pytest.approx(stated, rel=0.01)
        assert overview.step_ns.value == pytest.approx(float(row[f"{side}_step_s"]) * 1e9, rel=0.01)
    assert view.ledger.efficiency.value == pytest.approx(float(row["efficiency"]), abs=0.01)
    assert view.ledger.verdict.value == row["verdict"]


@needs_own
@pytest.mark.parametrize("case", sorted(CASES))
def test_report_and_explain_give_one_throughput(case: str) -> None:
    """Both are of all ranks and over the same steps."""
    text = page(CASES[case])
    throughputs = [line.split()[1] for line in text.splitlines() if "  throughput   " in line]
    base, target = (
        line.split()[1]
        for line in text.splitlines()
        if line.startswith(("  base  ", "  target  ")) and "/s  " in line
    )
    assert throughputs == [base, target]
