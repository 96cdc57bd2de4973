"""Two imported jobs with pipelines: what `explain` says of them is true of both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from profkit.analysis.whatif.operations import MESSAGES
from profkit.explain.explained import explain
from profkit.explain.rules.base import Cause
from profkit.explain.rules.exposed_communication import share_in_messages
from profkit.importers.base import Target
from profkit.importers.straggler import IMPORTER
from profkit.report import as_text
from profkit.report.ledger_document import explained
from profkit.trace import Trace
from tests.pipelines import MEAN_NS, PipelinePlan, run_pipeline

STEPS = 12


def make(folder: Path, name: str, **changes: Any) -> Trace:
    plan = PipelinePlan(steps=STEPS, **{"data_ranks": 2, "microbatches": 4, **changes})
    path = run_pipeline(plan).write(folder, name)
    (made,) = IMPORTER.read([path], Target(folder / "traces"))
    return Trace.open(made.run)


def causes_of(base: Trace, target: Trace) -> dict[str, Cause]:
    return {cause.kind: cause for cause in explain(base, target).causes}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return make(tmp_path_factory.mktemp("usual"), "usual")


def test_equal_jobs_have_no_cause(usual: Trace, tmp_path: Path) -> None:
    assert causes_of(usual, make(tmp_path, "usual", seed=1)) == {}


def test_a_slow_stage_makes_the_others_wait_for_its_messages(usual: Trace, tmp_path: Path) -> None:
    slow = make(tmp_path, "slow", slow={(0, 3): 2.0, (1, 3): 2.0})
    cause = causes_of(usual, slow)["late_rank"]
    assert re.search(r"most others'; rank [67] is late as well", cause.evidence)
    assert "all ranks of stage 3 of the pipeline" in cause.remedy


def test_a_slow_worker_of_a_stage_is_late_alone(usual: Trace, tmp_path: Path) -> None:
    slow = make(tmp_path, "slow", slow={(1, 2): 2.0})
    cause = causes_of(usual, slow)["late_rank"]
    assert "rank 5's backward takes" in cause.evidence
    assert "longer than the others'" in cause.evidence
    assert "compare rank 5's host" in cause.remedy


def test_slow_messages_are_a_cause_of_their_own(
    usual: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = {**MEAN_NS, **dict.fromkeys(MESSAGES, 20_000_000)}
    monkeypatch.setattr("tests.pipelines.MEAN_NS", slower)
    cause = causes_of(usual, make(tmp_path, "slow"))["exposed_communication"]
    assert "of it is in messages between stages of the pipeline" in cause.evidence
    assert "links between the stages" in cause.remedy
    assert "buckets" not in cause.remedy


def test_the_share_of_messages_is_that_of_the_exposed_time(usual: Trace, tmp_path: Path) -> None:
    one_stage = make(tmp_path, "one", stages=1)
    found = []
    for trace in (usual, one_stage):
        found.append(share_in_messages(explain(trace, trace).case.after))
    assert found[1] == 0
    assert 0.5 < found[0] < 1


def test_no_line_speaks_of_what_the_file_does_not_say(usual: Trace, tmp_path: Path) -> None:
    slow = make(tmp_path, "slow", slow={(1, 2): 2.0})
    text = as_text.document(explained(explain(usual, slow), ()))
    for words in (
        "radient exchange",
        "exchange of gradients",
        "checkpoints and logging",
        "DDP",
        "a late rank",
    ):
        assert words not in text


def test_the_pace_is_that_of_the_job_and_not_of_all_its_ranks(usual: Trace) -> None:
    text = as_text.document(explained(explain(usual, usual), ()))
    seconds = float(usual.steps["end_ns"][-1].as_py()) / STEPS / 1e9
    (pace,) = set(re.findall(r"([\d.]+) steps/s", text))
    assert float(pace) == pytest.approx(1 / seconds, rel=0.05)
