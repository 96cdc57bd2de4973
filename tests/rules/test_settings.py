"""Settings that differ are named with all that they can affect, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profkit.explain.explained import Explained, explain
from profkit.explain.ledger import Verdict
from profkit.testing import synthetic_trace
from profkit.trace import Trace

MS = 1_000_000
PLAIN: Mapping[str, Any] = {
    "precision": "fp32",
    "model": "Net",
    "parameters_count": 1000,
    "parameters_fingerprint": "0a",
    "optimizer": "SGD",
    "optimizer_foreach": "default",
    "optimizer_fused": "default",
    "batch_shapes": "8x3x32x32, 8",
    "batch_shapes_distinct": 1,
    "anomaly_mode": False,
    "threads": 2,
}
SLOWER: Mapping[str, int] = {"forward": 16 * MS, "backward": 32 * MS, "optimizer": 5 * MS}
"""13.3 ms more than usual: 4 in forward, 8 in backward, the rest in the weight update."""

Compare = Callable[..., Explained]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def compare(
        phases: Mapping[str, int],
        device: str = "cpu",
        ranks: int = 1,
        cores: int = 64,
        batch: int = 32,
        **changed: Any,
    ) -> Explained:
        sides: list[Trace] = []
        runs: list[tuple[str, Mapping[str, int], Mapping[str, Any], int]] = [
            ("base", {}, {}, 32),
            ("target", phases, changed, batch),
        ]
        for name, added, config, size in runs:
            run = synthetic_trace(
                tmp_path / name,
                steps=120,
                seed=1 + len(sides),
                phase_ns=added,
                device=device,
                ranks=ranks,
                batch_size=size,
                config={**PLAIN, **config},
            )
            trace = Trace.open(run)
            environment = {**trace.manifest.environment, "cpu_count": cores}
            vars(trace)["manifest"] = replace(trace.manifest, environment=environment)
            sides.append(trace)
        return explain(sides[0], sides[1])

    return compare


def _kinds(view: Explained) -> list[str]:
    return [each.kind for each in view.causes]


@pytest.mark.parametrize(
    ("changed", "phases", "rows"),
    [
        ({"precision": "fp64"}, SLOWER, {"forward", "backward", "optimizer"}),
        ({"anomaly_mode": True}, SLOWER, {"forward", "backward"}),
        ({"activation_checkpointing": True}, {"backward": 32 * MS}, {"backward"}),
        ({"optimizer": "AdamW"}, {"optimizer": 9 * MS}, {"optimizer"}),
        ({"threads": 1}, SLOWER, None),
    ],
)
def test_a_setting_costs_what_all_its_rows_grew_by(
    changed: Mapping[str, Any], phases: Mapping[str, int], rows: set[str] | None, compare: Compare
) -> None:
    view = compare(phases, **changed)
    assert _kinds(view) == ["setting_changed"]
    (cause,) = view.causes
    expected = rows or {"forward", "backward", "optimizer"}
    assert set(cause.rows) == expected
    grown = sum(row.delta.value for row in view.ledger.rows if row.name in expected)
    assert cause.cost_ns is not None
    assert cause.cost_ns.value == pytest.approx(grown * view.ledger.samples_per_step, rel=1e-6)
    assert next(iter(changed)) in cause.evidence
    assert "fingerprint" not in cause.evidence


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer": "AdamW"},
        {"batch_shapes": "16x3x32x32, 16"},
        {"batch_shapes": "8x3x64x64, 8", "batch_shapes_distinct": 9},
        {"workers": 4},
        {"command": ["train.py", "--fast"]},
    ],
)
def test_a_setting_that_cannot_affect_the_row_is_not_named(
    changed: Mapping[str, Any], compare: Compare
) -> None:
    assert _kinds(compare({"backward": 34 * MS}, **changed)) == []


def test_a_batch_size_that_one_run_does_not_state_is_not_blamed(compare: Compare) -> None:
    assert _kinds(compare({"backward": 34 * MS}, batch_size=None)) == []


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({"optimizer_foreach": "False"}, ["optimizer_unfused"]),
        ({"optimizer": "AdamW"}, ["setting_changed"]),
        ({"optimizer_multi_tensor": "False"}, []),  # the base does not say
        ({}, []),
    ],
)
def test_a_slow_update_is_blamed_on_its_variant_only_if_that_differs(
    changed: Mapping[str, Any], kinds: list[str], compare: Compare
) -> None:
    assert _kinds(compare({"optimizer": 9 * MS}, **changed)) == kinds


def test_an_exchange_that_grew_with_the_model_has_no_cause_of_its_own(compare: Compare) -> None:
    """All gradients are three times as many bytes, and their exchange takes three times as long."""
    grown = {"parameters_count": 3_000}
    longer = {"allreduce": 10 * MS}
    (cause,) = compare(longer, ranks=2, **grown).causes
    assert (cause.kind, cause.detail) == ("more_work", "parameters")
    assert "3.0 times as many" in cause.evidence


def test_threads_of_the_host_are_no_setting_of_a_devices_work(compare: Compare) -> None:
    assert _kinds(compare({"backward": 34 * MS}, device="cuda", threads=1)) == []


@pytest.mark.parametrize(
    ("threads", "ranks", "kind"),
    [(4, 2, "thread_oversubscription"), (1, 2, "setting_changed"), (4, 1, "setting_changed")],
)
def test_threads_that_do_not_fit_the_cores_are_told_without_readings(
    threads: int, ranks: int, kind: str, compare: Compare
) -> None:
    view = compare(SLOWER, ranks=ranks, threads=threads, cores=4)
    assert _kinds(view) == [kind]


def test_a_larger_batch_is_what_makes_a_sample_faster(compare: Compare) -> None:
    """Each step takes as long as before, whatever its batch is."""
    view = compare({}, batch=64)
    gain = view.causes[0]
    assert view.ledger.verdict is Verdict.IMPROVEMENT
    assert (gain.kind, gain.is_gain) == ("more_work", True)
    assert "steps for as many samples" in gain.evidence
