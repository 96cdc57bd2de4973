"""Gains and losses of one pair, what they explain of the gap, and what must not be blamed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.analysis.config_join import Recorded
from profkit.explain.evidence import Exchanges
from profkit.explain.evidence_counters import Load
from profkit.explain.explained import Explained, explain
from profkit.explain.ledger import Verdict
from profkit.explain.rules.base import Cause, from_to
from profkit.explain.turned import find_gains, turn
from profkit.plugins import RULES
from profkit.report import ledger_document
from profkit.report.cause_words import no_difference_words
from profkit.show import html, markdown
from profkit.show import text as show_text
from profkit.testing import synthetic_timeline, synthetic_trace
from profkit.testing.synthetic import MEAN_PHASE_NS
from profkit.text import percent
from profkit.trace import Trace
from tests.documents import gap_json

MS = 1_000_000
SLOW_INPUT = {"phase_ns": {"data": 22 * MS}}
IDLE = Load(cores=8, own=1.0, workers=1.0, machine=2.5, switches_per_s=5.0)
Pair = Callable[[dict[str, Any], dict[str, Any]], Explained]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Two synthetic runs with these options, compared."""

    def compare(base: dict[str, Any], target: dict[str, Any]) -> Explained:
        sides = []
        for seed, options in enumerate((base, target), start=1):
            folder = tmp_path / str(seed)
            sides.append(Trace.open(synthetic_trace(folder, steps=120, seed=seed, **options)))
        return explain(sides[0], sides[1])

    return compare


def _text(view: Explained) -> str:
    return " ".join(show_text.document(ledger_document.explained(view)).split())


def _ask(name: str, view: Explained) -> Cause | None:
    cause: Cause | None = RULES.load(name)(view.case)
    return cause


def test_a_faster_input_is_a_gain_of_the_base_s_step(pair: Pair) -> None:
    view = pair({"batch_size": 32, **SLOW_INPUT}, {"batch_size": 16, "phase_ns": _half()})
    assert view.ledger.verdict is Verdict.IMPROVEMENT
    (gain,) = view.causes
    assert (gain.kind, gain.is_gain, gain.remedy) == ("input_bound", True, "")
    assert gain.cost_ns is not None
    assert gain.cost_ns.value == pytest.approx(20 * MS, rel=0.05)
    assert gain.share_of_gap == pytest.approx(1.0, abs=0.1)
    text = _text(view)
    assert "waiting for data (input_bound, improvement): " in text
    assert re.search(r"exposed wait for data went from 2[123]\.?\d* ms to [123]\.\d+ ms", text), (
        text
    )
    assert "% of the gain" in text
    assert "try:" not in text
    found = gap_json(view)
    assert [each["is_gain"] for each in found["causes"]] == [True]


def _half() -> dict[str, int]:
    """Return phases whose time per sample is the default's at half the batch."""
    return {name: ns // 2 for name, ns in MEAN_PHASE_NS.items()}


def test_a_turned_ledger_keeps_its_intervals_and_turns_back(pair: Pair) -> None:
    case = pair(SLOW_INPUT, {}).case
    turned = turn(case)
    delta, back = case.ledger.total.delta, turned.ledger.total.delta
    assert delta.low is not None
    assert delta.high is not None
    assert (back.value, back.low, back.high) == (-delta.value, -delta.high, -delta.low)
    assert turn(turned) == case
    assert from_to(turned.ledger.rows[0], turned.ledger) == from_to(
        case.ledger.rows[0], case.ledger
    )


def test_a_gain_and_a_loss_stand_side_by_side(pair: Pair) -> None:
    view = pair(SLOW_INPUT, {"phase_ns": {"other": 8 * MS}})
    assert [(each.kind, each.is_gain) for each in view.causes] == [
        ("input_bound", True),
        ("evaluation_in_training", False),
    ]
    assert view.causes[1].share_of_gap is None, "a loss is no share of a gain"


def test_two_runs_alike_have_no_gain(pair: Pair) -> None:
    view = pair({"ranks": 2}, {"ranks": 2})
    assert list(find_gains(view.case, [RULES.load(name) for name in RULES.names()])) == []
    assert view.coverage is None


def test_the_rest_of_the_gap_is_named_with_its_row_and_settings(pair: Pair) -> None:
    view = pair(
        {"config": {"precision": "fp32", "flavour": "plain"}},
        {"phase_ns": {"data": 7 * MS, "backward": 39 * MS}, "config": {"flavour": "mixed"}},
    )
    found = view.coverage
    assert found is not None
    assert found.share == pytest.approx(0.25, abs=0.03)
    assert not found.is_bound
    assert found.row == "backward"
    assert found.row_share == pytest.approx(0.75, abs=0.03)
    assert found.settings == ("flavour plain -> mixed",), "nobody knows if precision differs"
    assert found.row_share is not None
    shares = percent(found.share, 0), percent(found.row_share, 0)
    words = (
        f"The causes explain {shares[0]} of the gap; {shares[1]} is in backward, "
        "which no rule names"
    )
    document = ledger_document.explained(view)
    for page in (show_text.document(document), markdown.document(document)):
        plain = " ".join(page.replace("\\", "").split())
        assert words in plain
        assert plain.index("input_bound") < plain.index(words), "it stands under the causes"
    assert "which no rule names" in html.document(document, "0")
    told = gap_json(view)["explained"]
    assert told["row_without_cause"] == "backward"


@pytest.mark.parametrize(
    ("base", "target", "shows"),
    [
        ({}, {}, True),
        ({"stacks": True}, {}, True),
        ({"stacks": True}, {"stacks": True}, False),
        ({"device": "cuda"}, {"device": "cuda"}, False),
    ],
)
def test_lines_are_asked_for_where_they_show_more(
    base: dict[str, Any], target: dict[str, Any], shows: bool, pair: Pair
) -> None:
    """Not where both sides have them, and not for what a device computes."""
    view = pair(base, {"phase_ns": {"backward": 39 * MS}, **target})
    words = " ".join(show_text.document(ledger_document.explained(view)).split())
    assert "is in backward, which no rule names" in words
    assert ("to see its lines, record with 'profkit run --lines on'" in words) == shows


@pytest.mark.parametrize(
    ("base", "target", "kinds"),
    [
        ({}, {}, []),
        ({"optimizer_multi_tensor": "True"}, {"optimizer_multi_tensor": "True"}, []),
        (
            {"optimizer_multi_tensor": "True"},
            {"optimizer_multi_tensor": "False"},
            ["optimizer_unfused"],
        ),
    ],
)
def test_an_update_is_unfused_only_if_something_shows_it(
    base: dict[str, str], target: dict[str, str], kinds: list[str], pair: Pair
) -> None:
    """That it takes longer shows nothing: it may clip gradients, or average weights."""
    view = pair({"config": base}, {"config": target, "phase_ns": {"optimizer": 10 * MS}})
    assert [cause.kind for cause in view.causes] == kinds


def test_causes_that_can_overlap_explain_at_most_their_sum(pair: Pair) -> None:
    view = pair({}, {"phase_ns": {"backward": 60 * MS}, "config": {"amp": True}})
    found = view.coverage
    assert [each.kind for each in view.causes] == ["setting_changed"]
    assert found is not None
    assert found.is_bound, "a setting that differs is only a possible cause"


def test_an_inconclusive_total_has_no_share(pair: Pair) -> None:
    view = pair({"config": {"device": "cuda:0"}}, {**SLOW_INPUT, "config": {"device": "cpu"}})
    assert view.ledger.verdict is Verdict.CANNOT_JUDGE
    assert view.coverage is None


def test_a_job_s_own_time_outside_phases_is_no_busy_host(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.005, 0.6])
    build = synthetic_timeline.build_timeline

    def write(plan: Any) -> Any:
        monkeypatch.setattr(synthetic_timeline, "UNCOVERED_SHARE", next(shares))
        return build(plan)

    monkeypatch.setattr("profkit.testing.synthetic.build_timeline", write)
    view = pair({}, {})
    assert view.ledger.largest is not None
    assert view.ledger.largest.name == "unknown"
    vars(view.case.before)["load"] = IDLE
    for load in (Load(8, 1.0, 1.0, 7.9, 900.0), Load(8, 6.5, 1.0, 8.0, 900.0)):
        vars(view.case.after)["load"] = load
        assert _ask("host_busy", view) is None
        assert _ask("thread_oversubscription", view) is None


@pytest.mark.parametrize(
    "load",
    [
        Load(2, 1.9, 0.0, 1.95, 6.0, threads=14.0),
        Load(2, 1.9, 0.0, 1.95, 900.0, threads=14.0, runnable=1.9),
    ],
    ids=["no switches", "no queue"],
)
def test_threads_that_do_not_wait_for_cores_are_no_oversubscription(pair: Pair, load: Load) -> None:
    view = pair({}, {"phase_ns": {"forward": 24 * MS}})
    vars(view.case.before)["load"] = Load(2, 1.0, 0.0, 1.1, 5.0, threads=12.0)
    vars(view.case.after)["load"] = load
    assert _ask("thread_oversubscription", view) is None


def test_nothing_hides_the_input_of_a_job_on_the_cpu(pair: Pair) -> None:
    target = {"phase_ns": {"data": 12 * MS, "forward": 2 * MS}}
    view = pair({}, target)
    assert _ask("overlapped_reader", view) is None
    assert [(each.kind, each.is_gain) for each in view.causes][:1] == [("input_bound", False)]


@pytest.mark.parametrize("name", ["tiny_buckets", "huge_bucket", "optimizer_unfused"])
def test_more_gradients_are_not_blamed_on_buckets_or_the_optimizer(pair: Pair, name: str) -> None:
    phases = {"allreduce": 12 * MS, "optimizer": 12 * MS}
    view = pair({"ranks": 2}, {"ranks": 2, "phase_ns": phases})
    vars(view.case.before)["exchanges"] = Exchanges(4, 4.43e6, 4)
    buckets = 1 if name == "huge_bucket" else 8
    vars(view.case.after)["exchanges"] = Exchanges(buckets, 200e6, buckets)
    assert _ask(name, view) is None


@pytest.mark.parametrize(("backward_ms", "is_named"), [(0, True), (-12, False)])
def test_few_buckets_are_named_unless_backward_gains_what_the_exchange_loses(
    pair: Pair, backward_ms: int, is_named: bool
) -> None:
    added = {"allreduce": 12, "backward": backward_ms}
    phases = {name: MEAN_PHASE_NS[name] + ms * MS for name, ms in added.items()}
    view = pair({"ranks": 2}, {"ranks": 2, "phase_ns": phases})
    for evidence, buckets in ((view.case.before, 4), (view.case.after, 1)):
        vars(evidence)["exchanges"] = Exchanges(buckets, 100e6 / buckets, buckets)
    costs = view.ledger.target
    # Backward varies by more than the exchange grows, and as much in the mean.
    noise_ns = 80 * MS * np.sin(np.linspace(0, 4 * np.pi, costs.steps, endpoint=False))
    parts = {**costs.parts, "backward": costs.parts["backward"] + noise_ns.astype(np.int64)}
    ledger = dataclasses.replace(view.ledger, target=dataclasses.replace(costs, parts=parts))
    cause = RULES.load("huge_bucket")(dataclasses.replace(view.case, ledger=ledger))
    assert (cause is not None) == is_named
    assert cause is None or "; allreduce went from" in cause.evidence


def test_what_no_run_recorded_is_not_called_equal() -> None:
    for recorded in (Recorded(True, True, True), Recorded(True, False, True)):
        words = no_difference_words(recorded)
        assert "Nothing else that both runs recorded differs" in words
        assert "code and data are not compared" in words
