"""Running totals: readings that only ever grow, and are shown as rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from profkit.analysis.views.series import rates
from profkit.frame.estimate import Floats, Ints

RATES: Final[Mapping[tuple[str, str], str]] = {
    ("nvml", "energy_joules"): "mean_power_watts",
    ("nvml", "nvlink_sent_bytes"): "nvlink_sent_bytes_per_s",
    ("nvml", "nvlink_received_bytes"): "nvlink_received_bytes_per_s",
    ("host", "cpu_busy_seconds"): "cpu_busy_cores",
    ("host", "cpu_idle_seconds"): "cpu_idle_cores",
    ("host", "cpu_disk_wait_seconds"): "cpu_disk_wait_cores",
    ("host", "cpu_stolen_seconds"): "cpu_stolen_cores",
    ("host", "cpu_throttled_seconds"): "cpu_throttled_cores",
    ("host", "page_faults_count"): "page_faults_per_s",
    ("host", "major_page_faults_count"): "major_page_faults_per_s",
    ("host", "disk_read_bytes"): "disk_read_bytes_per_s",
    ("host", "disk_written_bytes"): "disk_written_bytes_per_s",
    ("host", "network_received_bytes"): "network_received_bytes_per_s",
    ("host", "network_sent_bytes"): "network_sent_bytes_per_s",
    ("host", "worker_cpu_seconds"): "worker_cpu_cores",
    ("host", "worker_cpu_wait_seconds"): "worker_cpu_wait_cores",
    ("host", "worker_major_faults_count"): "worker_major_faults_per_s",
    ("process", "cpu_seconds"): "cpu_cores",
    ("process", "cpu_wait_seconds"): "cpu_wait_cores",
    ("process", "python_threads_cpu_seconds"): "python_threads_cpu_cores",
    ("process", "major_faults_count"): "major_faults_per_s",
    ("process", "involuntary_switches_count"): "involuntary_switches_per_s",
    ("garbage", "pause_seconds"): "pause_ratio",
    ("garbage", "collections_count"): "collections_per_s",
}
"""The name of the growth, with its unit at the end, by collector and reading."""


def as_rate(source: str, metric: str, time_ns: Ints, values: Floats) -> tuple[str, Ints, Floats]:
    """Return a reading's name, times and values; a running total is turned into its rate."""
    rate = RATES.get((source, metric))
    return (rate, *rates(time_ns, values)) if rate else (metric, time_ns, values)
