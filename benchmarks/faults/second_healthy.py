"""The healthy pairs of the second held-out suite: quiet, and next to other processes."""

from __future__ import annotations

from fault import Fault, healthy
from second_plants import CLICKS, METRIC, TRANSLATE

HEALTHY_2: tuple[Fault, ...] = (
    healthy("translate", {}, job=TRANSLATE),
    healthy("translate_no_workers", {"workers": 0}, job=TRANSLATE),
    healthy("translate_operators", {}, job=TRANSLATE, kernels=True),
    healthy("translate_evaluation", {"evaluate_every": 6}, job=TRANSLATE),
    healthy("translate_two_ranks", {}, job=TRANSLATE, ranks=2),
    healthy("metric", {}, job=METRIC),
    healthy("metric_two_ranks", {}, job=METRIC, ranks=2),
    healthy("metric_two_ranks_slow_link", {"delay_ms": 5.0}, job=METRIC, ranks=2),
    healthy("clicks", {}, job=CLICKS, framework="paddle"),
    healthy("clicks_own_thread", {"own_thread": True}, job=CLICKS, framework="paddle"),
    healthy("clicks_two_ranks", {}, job=CLICKS, ranks=2, framework="paddle"),
    healthy("translate_noise_on_target", {}, job=TRANSLATE, noise="target"),
    healthy("metric_noise_on_target", {}, job=METRIC, noise="target"),
    healthy("metric_two_ranks_noise_on_target", {}, job=METRIC, ranks=2, noise="target"),
    healthy("clicks_noise_on_target", {}, job=CLICKS, framework="paddle", noise="target"),
    healthy("translate_noise_on_both", {}, job=TRANSLATE, noise="both"),
    healthy("metric_noise_on_both", {}, job=METRIC, noise="both"),
    healthy("metric_two_ranks_noise_on_both", {}, job=METRIC, ranks=2, noise="both"),
    healthy("clicks_noise_on_both", {}, job=CLICKS, framework="paddle", noise="both"),
)
