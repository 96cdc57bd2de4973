"""The load of a machine from readings: bracketing, workers, and what other processes used."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from profkit.analysis.machine_state import mean_state, read_machine_state

S = 1_000_000_000
Reading = tuple[int, "str | None", str, str, float, float]


def _samples(readings: Sequence[Reading]) -> pa.Table:
    """Readings as (rank, device, source, metric, second, value)."""
    columns = list(zip(*readings, strict=True))
    return pa.table(
        {
            "rank": pa.array(columns[0], pa.int32()),
            "device": pa.array(columns[1], pa.string()).dictionary_encode(),
            "source": pa.array(columns[2], pa.string()).dictionary_encode(),
            "metric": pa.array(columns[3], pa.string()).dictionary_encode(),
            "time_ns": pa.array([round(second * S) for second in columns[4]], pa.int64()),
            "value": pa.array(columns[5], pa.float64()),
        }
    )


def _grows(
    source: str, metric: str, per_s: float, *, rank: int = 0, device: str | None = None
) -> list[Reading]:
    return [(rank, device, source, metric, float(at), 5.0 + per_s * at) for at in range(10)]


def test_what_others_use_is_what_neither_ranks_nor_workers_do() -> None:
    samples = _samples(
        [
            *_grows("host", "cpu_busy_seconds", 3.5),
            *_grows("host", "cpu_stolen_seconds", 0.25),
            *_grows("process", "cpu_seconds", 1.0),
            *_grows("process", "cpu_seconds", 0.5, rank=1),
            *_grows("process", "cpu_wait_seconds", 0.125),
            *_grows("process", "cpu_wait_seconds", 0.25, rank=1),
            *_grows("host", "worker_cpu_seconds", 0.75, device="process 7"),
            *_grows("host", "worker_cpu_wait_seconds", 0.5, device="process 7"),
        ]
    )
    state = read_machine_state(samples, 4, 2 * S, 8 * S)
    assert state is not None
    assert state.others == pytest.approx(3.5 + 0.25 - 1.5 - 0.75)
    assert state.waited == pytest.approx(0.125 + 0.25 + 0.5)
    assert state.share_of_others == pytest.approx(1.5 / 4)


def test_the_reading_before_the_steps_and_the_one_after_them_are_enough() -> None:
    readings: list[Reading] = []
    for source, metric, per_s in (("host", "cpu_busy_seconds", 2.0), ("process", "cpu_seconds", 1)):
        readings += [(0, None, source, metric, second, per_s * second) for second in (0, 1, 3, 9)]
    state = read_machine_state(_samples(readings), 2, round(1.2 * S), round(1.9 * S))
    assert state is not None
    assert state.others == pytest.approx(1.0), "from second 1 to 3"
    assert state.waited is None
    assert read_machine_state(_samples(readings), 2, 20 * S, 21 * S) is None


def test_a_total_that_falls_is_a_thread_that_ended() -> None:
    waits = [
        (0, None, "process", "cpu_wait_seconds", at, value)
        for at, value in ((0, 4.0), (1, 5.0), (2, 0.0), (3, 1.0))
    ]
    samples = _samples(
        [*waits, *_grows("host", "cpu_busy_seconds", 1.0), *_grows("process", "cpu_seconds", 1.0)]
    )
    state = read_machine_state(samples, 2, 0, 3 * S)
    assert state is not None
    assert state.waited == pytest.approx(2 / 3)


def test_a_machine_that_was_not_read_has_no_state() -> None:
    assert read_machine_state(_samples(_grows("process", "cpu_seconds", 1.0)), 2, 0, 9 * S) is None


def test_the_mean_of_runs_knows_waits_only_if_all_do() -> None:
    readings = [*_grows("host", "cpu_busy_seconds", 2.0), *_grows("process", "cpu_seconds", 1.0)]
    without = read_machine_state(_samples(readings), 2, 0, 9 * S)
    waits = _grows("process", "cpu_wait_seconds", 0.5)
    known = read_machine_state(_samples([*readings, *waits]), 2, 0, 9 * S)
    assert without is not None
    assert known is not None
    assert mean_state([known, known]).waited == pytest.approx(0.5)
    assert mean_state([known, without]).waited is None
