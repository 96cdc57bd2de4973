"""Effects and interactions on made-up matrices whose truth is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from profkit.analysis.matrix import Setting
from profkit.analysis.published import published_cells
from profkit.bench.effects import (
    Effect,
    Effects,
    Interaction,
    find_effects,
)
from profkit.bench.timings import combine, published_timings, time_cells
from profkit.frame.costs import DATA, RunCosts
from profkit.frame.estimate import Estimate
from profkit.frame.selection import Selection

MS = 1_000_000
STEPS = 40
BATCH = 4
NOTHING_SELECTED = Selection(np.arange(STEPS, dtype=np.int64), {})


def run_of(
    setting: Setting,
    parts_ms: Mapping[str, float],
    rng: np.random.Generator,
    *,
    step_noise: float,
    run_noise: float,
) -> RunCosts:
    """Return a run of these parts per sample and GPU.

    Its noise drifts from step to step and differs from run to run.
    """
    drift = np.empty(STEPS)
    drift[0] = rng.normal()
    for step in range(1, STEPS):
        drift[step] = 0.6 * drift[step - 1] + 0.8 * rng.normal()
    factor = (1 + step_noise * drift) * math.exp(run_noise * rng.normal())
    samples = np.full(STEPS, setting.batch_size * setting.gpus, dtype=np.int64)
    parts = {
        name: np.rint(ms * MS * factor * samples).astype(np.int64) for name, ms in parts_ms.items()
    }
    return RunCosts(
        sum(parts.values(), np.zeros(STEPS, dtype=np.int64)),
        samples,
        setting.gpus,
        parts,
        {},
        {},
        NOTHING_SELECTED,
    )


def true_parts(setting: Setting) -> dict[str, float]:
    """AMP halves the computation, but 8 GPUs wait for data instead; DALI changes nothing."""
    computing = 30.0 if setting.precision == "fp32" else 15.0
    waiting = 1.0 if setting.gpus == 1 else 45.0 - computing
    return {"forward": computing, DATA: waiting}


def settings() -> Iterator[Setting]:
    for gpus, precision, loader in itertools.product(
        (1, 8), ("fp32", "bf16"), ("torch DataLoader", "DALI")
    ):
        yield Setting(gpus, precision, BATCH, loader)


def matrix(
    seed: int, *, repeats: int = 3, step_noise: float = 0.02, run_noise: float = 0.01
) -> Effects:
    rng = np.random.default_rng(seed)
    runs = {
        each: [
            run_of(each, true_parts(each), rng, step_noise=step_noise, run_noise=run_noise)
            for _ in range(repeats)
        ]
        for each in settings()
    }
    return find_effects(time_cells(runs))


def true_delta(effect: Effect) -> float:
    return (
        sum(true_parts(effect.target.setting).values())
        - sum(true_parts(effect.base.setting).values())
    ) * MS


def only(interactions: tuple[Interaction, ...], axis: str, other: str) -> list[Interaction]:
    return [each for each in interactions if (each.first.axis, each.other_axis) == (axis, other)]


def test_without_noise_effects_are_the_truth() -> None:
    found = matrix(0, step_noise=0, run_noise=0)
    assert len(found.effects) == 12
    for effect in found.effects:
        assert effect.delta.value == pytest.approx(true_delta(effect), abs=1)
    (amp,) = [each for each in found.main if each.axis == "precision"]
    assert amp.delta.value == pytest.approx(-7.5 * MS, abs=1)


def test_intervals_hold_the_truth() -> None:
    """Over many seeded matrices, all effects of which are counted."""
    held = [
        effect.delta.low <= true_delta(effect) <= effect.delta.high
        for seed in range(30)
        for effect in matrix(seed).effects
        if effect.delta.low is not None and effect.delta.high is not None
    ]
    assert len(held) == 360
    assert 0.92 <= sum(held) / len(held) <= 1.0


def test_what_does_nothing_is_seldom_sure() -> None:
    dali = [
        effect.sure
        for seed in range(30)
        for effect in matrix(seed).effects
        if effect.axis == "loader"
    ]
    assert sum(dali) / len(dali) <= 0.05


def test_amp_gives_nothing_where_the_step_waits_for_input() -> None:
    """The interaction is found, and its reason is the part that grows."""
    for each in only(matrix(1).interactions, "precision", "gpus"):
        assert each.first.sure
        assert not each.second.sure
        assert each.sure
        assert each.delta.value == pytest.approx(15 * MS, rel=0.1)
        assert each.reason == DATA
        assert each.reason_ns == pytest.approx(15 * MS, rel=0.1)


def test_axes_that_do_not_depend_on_each_other_show_no_interaction() -> None:
    assert not any(each.sure for each in only(matrix(2).interactions, "precision", "loader"))


def test_repeats_that_scatter_widen_the_interval_beyond_what_one_run_tells() -> None:
    quiet, loud = matrix(3, run_noise=0.0), matrix(3, run_noise=0.2)
    assert all(
        width(after.delta) > 3 * width(before.delta)
        for before, after in zip(quiet.effects, loud.effects, strict=True)
    )


def width(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def test_a_missing_cell_takes_its_own_effects_and_no_others() -> None:
    rng = np.random.default_rng(4)
    given = [each for each in settings() if each != Setting(8, "bf16", BATCH, "DALI")]
    runs = {
        each: [run_of(each, true_parts(each), rng, step_noise=0, run_noise=0)] for each in given
    }
    found = find_effects(time_cells({**runs, Setting(8, "bf16", BATCH, "DALI"): []}))
    assert len(found.effects) == 9
    assert all(math.isfinite(effect.delta.value) for effect in found.effects)


def test_the_framework_is_an_axis_and_the_other_effects_stay_within_one_framework() -> None:
    """Paddle takes 5 ms more per sample than torch with AMP, and as long as torch without."""
    runs = {}
    for framework, precision, loader in itertools.product(
        ("paddle", "torch"), ("fp32", "bf16"), ("{} DataLoader", "DALI")
    ):
        setting = Setting(1, precision, BATCH, loader.format(framework), framework)
        parts = true_parts(setting)
        if (framework, precision) == ("paddle", "bf16"):
            parts["forward"] += 5.0
        rng = np.random.default_rng(5)
        runs[setting] = [run_of(setting, parts, rng, step_noise=0, run_noise=0)]
    found = find_effects(time_cells(runs))
    for effect in found.effects:
        sides = effect.base.setting, effect.target.setting
        if effect.axis == "framework":
            assert [side.framework for side in sides] == ["torch", "paddle"]
            expected = 5.0 * MS if sides[0].precision == "bf16" else 0.0
            assert effect.delta.value == pytest.approx(expected, abs=1)
        else:
            assert sides[0].framework == sides[1].framework
    axes = [effect.axis for effect in found.effects]
    assert [axes.count(axis) for axis in ("precision", "loader", "framework")] == [4, 4, 4]
    depends = only(found.interactions, "precision", "framework")
    assert [each.delta.value for each in depends] == pytest.approx([5.0 * MS] * 2, abs=1)
    assert len(only(found.interactions, "precision", "loader")) == 2


def test_published_cells_have_effects_and_no_intervals() -> None:
    """The ratio of two published throughputs is the effect."""
    cells = [cell for cell in published_cells("mask_rcnn") if cell.source.startswith("NGC")]
    found = find_effects(published_timings(cells))
    amp = next(
        each
        for each in found.effects
        if each.axis == "precision" and each.base.setting == Setting(1, "fp32", 4)
    )
    assert amp.delta.value == pytest.approx(1e9 / 12.5 - 1e9 / 9.8)
    assert not found.judged
    assert not amp.sure


def test_a_sum_of_figures_keeps_its_sides() -> None:
    total = combine([(1.0, Estimate(10.0, 9.0, 12.0)), (-2.0, Estimate(3.0, 2.0, 3.5))])
    assert total.value == 4.0
    assert total.low == pytest.approx(4.0 - math.hypot(1.0, 1.0))
    assert total.high == pytest.approx(4.0 + math.hypot(2.0, 2.0))
    assert not combine([(1.0, Estimate(1.0)), (1.0, Estimate(1.0, 0.5, 1.5))]).judged
